// Who may call what: every method has a rule, and every cell of the table holds on real servers.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grp.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "agent/api/agent.grpc.pb.h"
#include "base/fd.h"
#include "coordinator/api/access.h"
#include "coordinator/api/certificates.grpc.pb.h"
#include "coordinator/api/channel.h"
#include "coordinator/api/convert.h"
#include "coordinator/api/coordinator.grpc.pb.h"
#include "coordinator/api/job_rule.h"
#include "coordinator/api/relay.grpc.pb.h"
#include "coordinator/api/socket_owner.h"
#include "faults/api/faults.grpc.pb.h"
#include "tests/coordinator/api/tls_files.h"

// LeakSanitizer asks for this: c-ares keeps a copy of each name that gRPC resolved.
extern "C" const char* __lsan_default_suppressions() { return "leak:libcares.so\n"; }

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr const char* kCallVariable = "HOLDFAST_TEST_CALL";
constexpr int kReplyFd = 100;  // of the process that makes calls as another user
constexpr uid_t kBin = 2;      // its primary group is "bin"
constexpr uid_t kDaemon = 1;   // its primary group is "daemon"
constexpr uid_t kGames = 5;

const char* const kServices[] = {
    coordinator::Coordinator::service_full_name(), agent::Agent::service_full_name(),
    faults::FaultInjector::service_full_name(), coordinator::Certificates::service_full_name(),
    coordinator::Relays::service_full_name()};

const TlsFiles kPlain = [] {
  TlsFiles files;
  files.insecure_loopback = true;
  return files;
}();

const google::protobuf::ServiceDescriptor& Describe(const std::string& service) {
  return *google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service);
}

/// Returns the bytes of a request for the method that names a job; empty: none.
std::string RequestFor(const std::string& service, const std::string& method,
                       const std::string& job) {
  if (job.empty()) return "";
  const auto* kind = Describe(service).FindMethodByName(method)->input_type();
  std::unique_ptr<google::protobuf::Message> request(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(kind)->New());
  google::protobuf::Message* at = request.get();
  if (const auto* spec = kind->FindFieldByName("spec")) {
    at = at->GetReflection()->MutableMessage(at, spec);
  }
  at->GetReflection()->SetString(at, at->GetDescriptor()->FindFieldByName("job"), job);
  return request->SerializeAsString();
}

/// Calls a method with a request that names a job, or with an empty one. `named` is METHOD or
/// METHOD:JOB.
grpc::Status Call(grpc::Channel& channel, const std::string& service, const std::string& named) {
  const std::string method = named.substr(0, named.find(':'));
  const std::string job = method == named ? "" : named.substr(method.size() + 1);
  grpc::GenericStub stub(std::shared_ptr<grpc::Channel>(&channel, [](grpc::Channel*) {}));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const grpc::Slice bytes(RequestFor(service, method, job));
  const grpc::ByteBuffer request(&bytes, 1);
  grpc::ByteBuffer reply;
  grpc::Status status;
  auto call = stub.PrepareUnaryCall(&context, "/" + service + "/" + method, request, &queue);
  call->StartCall();
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status;
}

/// Whether the call reached the handler of a default service.
bool Passed(const grpc::Status& status) {
  EXPECT_TRUE(status.error_code() == grpc::StatusCode::UNIMPLEMENTED ||
              status.error_code() == grpc::StatusCode::PERMISSION_DENIED)
      << status.error_code() << ": " << status.error_message();
  return status.error_code() == grpc::StatusCode::UNIMPLEMENTED;
}

/// A server whose handlers answer each call with UNIMPLEMENTED.
class Running {
 public:
  Running(std::unique_ptr<grpc::Service> service, std::string name, const std::string& address,
          const TlsFiles& tls = kPlain, const AccessOptions& options = {})
      : service_(std::move(service)), name_(std::move(name)), endpoint_(*ParseEndpoint(address)) {
    guarded_ =
        GuardedService::Make(*service_, name_, "test", options, Clock::Real(), &owners).value();
    server_ = StartServer(*guarded_, endpoint_, tls, "listen").value();
  }
  ~Running() { server_->Shutdown(gpr_inf_past(GPR_CLOCK_REALTIME)); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  grpc::Status Try(const std::string& method, const TlsFiles& tls = {}) const {
    return Call(*MakeChannel(endpoint_, tls).value(), name_, method);
  }
  const std::string& name() const { return name_; }
  const Endpoint& endpoint() const { return endpoint_; }
  JobOwners owners;

 private:
  std::unique_ptr<grpc::Service> service_;
  const std::string name_;
  Endpoint endpoint_;
  std::unique_ptr<GuardedService> guarded_;
  std::unique_ptr<ApiServer> server_;
};

/// One server for each form of the APIs: callbacks for the coordinator, threads for the others.
std::vector<std::unique_ptr<Running>> StartAll(const TlsFiles& tls) {
  const std::string address = "127.0.0.1:0";
  std::vector<std::unique_ptr<Running>> all;
  all.push_back(std::make_unique<Running>(
      std::make_unique<coordinator::Coordinator::CallbackService>(), kServices[0], address, tls));
  all.push_back(std::make_unique<Running>(std::make_unique<agent::Agent::Service>(), kServices[1],
                                          address, tls));
  all.push_back(std::make_unique<Running>(std::make_unique<faults::FaultInjector::Service>(),
                                          kServices[2], address, tls));
  all.push_back(std::make_unique<Running>(
      std::make_unique<coordinator::Certificates::CallbackService>(), kServices[3], address, tls));
  all.push_back(std::make_unique<Running>(std::make_unique<coordinator::Relays::CallbackService>(),
                                          kServices[4], address, tls));
  return all;
}

TEST(AccessTest, EveryMethodHasARuleAndEveryRuleAMethod) {
  size_t methods = 0;
  for (const std::string service : kServices) {
    const auto& described = Describe(service);
    for (int i = 0; i < described.method_count(); ++i, ++methods) {
      const AccessRule* rule = FindAccessRule(service, described.method(i)->name());
      ASSERT_NE(rule, nullptr) << service << "." << described.method(i)->name();
      // A rule about jobs names a field of the request that exists.
      if (rule->users == UserRule::kNever) continue;
      const std::string job = RequestFor(service, std::string(rule->method), "x");
      auto request = std::unique_ptr<google::protobuf::Message>(
          google::protobuf::MessageFactory::generated_factory()
              ->GetPrototype(described.method(i)->input_type())
              ->New());
      ASSERT_TRUE(request->ParseFromString(job));
      EXPECT_EQ(JobNamedIn(*rule, *request), "x") << rule->method;
      EXPECT_NE(rule->roles, kNoRoles) << rule->method;
    }
  }
  EXPECT_EQ(AccessRules().size(), methods);
}

TEST(AccessTest, TheDocumentHasTheTable) {
  std::ifstream file(std::string(HOLDFAST_SOURCE_DIR) + "/docs/security.md");
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr(AccessTable())) << "docs/security.md has other rules";
}

TEST(AccessTest, AServiceWithoutRulesDoesNotStart) {
  coordinator::Coordinator::Service service;
  EXPECT_EQ(
      GuardedService::Make(service, "holdfast.Unknown", "test", {}, Clock::Real()).error().code(),
      ErrorCode::kInternal);
}

TEST(AccessTest, NamesOfCertificates) {
  auto name = ParseSpiffeName("spiffe://c1/agent/n0");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->cluster, "c1");
  EXPECT_EQ(name->role, Role::kAgent);
  EXPECT_EQ(name->name, "n0");
  for (const char* bad : {"", "spiffe://", "spiffe://c1", "spiffe://c1/agent", "spiffe://c1/agent/",
                          "spiffe:///agent/n", "spiffe://c1/root/n0",
                          "spiffe://c1/agent,operator/n0", "spiffe://c1/agent/n0/x",
                          "https://c1/agent/n0", "spiffe://c1//n0", "spiffe://c1/Agent/n0"}) {
    EXPECT_FALSE(ParseSpiffeName(bad)) << bad;
  }
}

class CertificateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!certificates_.made()) {
      GTEST_SKIP() << "the openssl command, which makes the certificates, does not run";
    }
  }
  TlsFiles Issue(const std::string& name, const std::string& uris) const {
    return FilesOf(certificates_.Issue(name, "IP:127.0.0.1" + uris));
  }
  const agent::TestCertificates& certificates_ = agent::TestCertificates::Get();
};

TEST_F(CertificateTest, EveryCellOfTheTable) {
  const auto servers = StartAll(FilesOf(certificates_.Node()));
  int cells = 0;
  for (const Role role : kRoles) {
    if (role == Role::kUser) continue;  // no certificate has this role
    const std::string name(ToString(role));
    const TlsFiles files = Issue("cell-" + name, ",URI:spiffe://test/" + name + "/x1");
    for (const auto& server : servers) {
      auto channel = MakeChannel(server->endpoint(), files).value();
      for (const AccessRule& rule : AccessRules()) {
        if (!server->name().ends_with("." + std::string(rule.service))) continue;
        ++cells;
        const grpc::Status status = Call(*channel, server->name(), std::string(rule.method));
        ASSERT_EQ(Passed(status), (rule.roles & Only(role)) != 0) << name << " " << rule.method;
        if (Passed(status)) continue;
        EXPECT_THAT(status.error_message(), HasSubstr(std::string(rule.method) +
                                                      ": needs the role " + ToString(rule.roles)));
        EXPECT_THAT(status.error_message(), HasSubstr("spiffe://test/" + name + "/x1 has " + name));
        EXPECT_EQ(FromGrpc(status, "here").code(), ErrorCode::kPermissionDenied);
      }
    }
  }
  EXPECT_EQ(cells, static_cast<int>(AccessRules().size() * (std::size(kRoles) - 1)));
}

TEST_F(CertificateTest, NamesThatGiveNoRole) {
  const auto servers = StartAll(FilesOf(certificates_.Node()));
  const Running& coordinator = *servers[0];
  const std::pair<const char*, const char*> refused[] = {
      {"other-cluster", ",URI:spiffe://test2/operator/x"},
      {"no-such-role", ",URI:spiffe://test/root/x"},
      {"user", ",URI:spiffe://test/user/x"},
      {"two-names", ",URI:spiffe://test/viewer/x,URI:spiffe://test/operator/x"},
      {"other-form", ",URI:spiffe://test/ns/a/sa/b"}};
  for (const auto& [name, uris] : refused) {
    const grpc::Status status = coordinator.Try("GetStatus", Issue(name, uris));
    EXPECT_FALSE(Passed(status)) << name;
    EXPECT_THAT(status.error_message(), HasSubstr("has no role")) << name;
  }
  EXPECT_TRUE(Passed(coordinator.Try("GetStatus", Issue("https", ",URI:https://test/x"))))
      << "another kind of URI is no name";
}

TEST_F(CertificateTest, CertificatesWithoutANameHaveAllRightsUnlessNamesAreRequired) {
  const TlsFiles node = FilesOf(certificates_.Node());
  for (const bool required : {false, true}) {
    AccessOptions options;
    options.require_names = required;
    const Running server(std::make_unique<coordinator::Coordinator::CallbackService>(),
                         kServices[0], "127.0.0.1:0", node, options);
    for (const char* method : {"Attach", "ForgetJob", "StartRun", "GetStatus"}) {
      EXPECT_EQ(Passed(server.Try(method, node)), !required) << method;
    }
  }
}

/// Not a test: the process that AsUser() starts.
TEST(ChildTest, Call) {
  const char* wanted = std::getenv(kCallVariable);  // NOLINT(concurrency-mt-unsafe)
  if (wanted == nullptr) GTEST_SKIP() << "only the process that another test starts runs this";
  std::istringstream text(wanted);
  std::string address;
  std::string service;
  std::string method;
  text >> address >> service;
  auto channel = MakeChannel(*ParseEndpoint(address), kPlain).value();
  while (text >> method) {
    const grpc::Status status = Call(*channel, service, method);
    ::dprintf(kReplyFd, "%d %s\n", status.error_code(), status.error_message().c_str());
  }
}

/// Calls the methods from a process of user `uid`. Returns a line for each: code and message.
std::vector<std::string> AsUser(uid_t uid, gid_t gid, const Running& server,
                                const std::string& methods) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd exe(::open("/proc/self/exe", O_RDONLY));
  const std::string variable = fmt::format("{}={} {} {}", kCallVariable,
                                           server.endpoint().ToString(), server.name(), methods);
  const char* const arguments[] = {"call", "--gtest_filter=ChildTest.Call", nullptr};
  const char* sanitizer = std::getenv("TSAN_OPTIONS");
  const std::string options = fmt::format("TSAN_OPTIONS={}", sanitizer == nullptr ? "" : sanitizer);
  const char* const environment[] = {variable.c_str(), options.c_str(), nullptr};
  const pid_t child = ::fork();
  if (child == 0) {  // only calls that are safe after fork() in a process with threads
    ::dup2(ends[1], kReplyFd);
    if (::setgroups(0, nullptr) != 0 || ::setresgid(gid, gid, gid) != 0 ||
        ::setresuid(uid, uid, uid) != 0) {
      ::_exit(9);
    }
    ::fexecve(exe.get(), const_cast<char* const*>(arguments),
              const_cast<char* const*>(environment));
    ::_exit(8);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// A server on loopback, or at a unix socket, and callers of several users.
class LoopbackTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can start processes of other users";
  }
  /// One letter for each method: y or n.
  static std::string Rights(uid_t uid, gid_t gid, const Running& server,
                            const std::string& methods = "Attach ForgetJob StartRun:x GetAudit") {
    std::string rights;
    last_.clear();
    for (const std::string& line : AsUser(uid, gid, server, methods)) {
      rights += line.starts_with("12 ") ? 'y' : line.starts_with("7 ") ? 'n' : '?';
      last_ += line + "\n";
    }
    return rights;
  }
  static std::unique_ptr<Running> Start(const AccessOptions& options,
                                        const std::string& address = "127.0.0.1:0") {
    return std::make_unique<Running>(std::make_unique<coordinator::Coordinator::CallbackService>(),
                                     kServices[0], address, kPlain, options);
  }
  static inline std::string last_;
};

TEST_F(LoopbackTest, TheUserOfTheConnectionDecides) {
  const agent::TempDir dir;
  ASSERT_EQ(::chmod(dir.path().c_str(), 0755), 0);
  AccessOptions options;
  options.operators_group = "daemon";
  options.agent_users = {"games"};
  for (const std::string& address : {std::string("127.0.0.1:0"), "unix:" + dir.path() + "/c"}) {
    const auto server = Start(options, address);
    EXPECT_EQ(Rights(0, 0, *server), "yyyy") << address << last_;
    EXPECT_EQ(Rights(kBin, kBin, *server), "nnyn") << address << last_;
    EXPECT_THAT(last_, HasSubstr("Coordinator.GetAudit: needs the role operator; user bin (uid 2) "
                                 "has user. Use root"));
    EXPECT_EQ(Rights(kDaemon, kDaemon, *server), "nyyy") << address << last_;
    EXPECT_EQ(Rights(54'321, 54'321, *server), "nnyn") << "without an account: " << last_;
    EXPECT_EQ(Rights(kBin, kDaemon, *server), "nnyn") << "the account decides: " << last_;
    EXPECT_EQ(Rights(kGames, kGames, *server), "ynyn") << address << last_;
  }
  EXPECT_FALSE(std::filesystem::exists(dir.path() + "/c")) << "a stop leaves no socket file";
}

TEST_F(LoopbackTest, UsersHaveTheirOwnJobsOnly) {
  const agent::TempDir dir;
  ASSERT_EQ(::chmod(dir.path().c_str(), 0755), 0);
  for (const std::string& address : {std::string("127.0.0.1:0"), "unix:" + dir.path() + "/c"}) {
    const auto server = Start({}, address);
    server->owners.Set("mine", kBin);
    server->owners.Set("roots", 0);
    server->owners.Set("old", std::nullopt);
    for (const AccessRule& rule : AccessRules()) {
      if (rule.service != "Coordinator") continue;
      const std::string method(rule.method);
      const bool listed = rule.users == UserRule::kOwnJobs;
      const bool own = rule.users == UserRule::kOwnJob || rule.users == UserRule::kNewJob || listed;
      std::string calls = method;
      if (own) {
        for (const char* job : {":mine", ":roots", ":old", ":new"}) calls += " " + method + job;
      }
      std::string expected = listed ? "y" : "n";
      if (rule.users == UserRule::kNewJob) expected = "y";  // the handler refuses an empty name
      if (own) expected += rule.users == UserRule::kNewJob ? "ynny" : "ynnn";
      EXPECT_EQ(Rights(kBin, kBin, *server, calls), expected) << method << "\n" << last_;
      EXPECT_EQ(Rights(0, 0, *server, calls), std::string(own ? 5 : 1, 'y')) << method;
    }
    Rights(kBin, kBin, *server, "PlanRestore:roots PlanRestore:old PlanRestore:new");
    EXPECT_THAT(last_, HasSubstr("PlanRestore: job 'roots' belongs to uid 0, and user bin (uid 2) "
                                 "may use only its own jobs. Use root"));
    EXPECT_THAT(last_, HasSubstr("job 'old' belongs to no user that is known"));
    EXPECT_THAT(last_, HasSubstr("user bin (uid 2) has no job 'new'"));
  }
}

/// The job rule of agents: the servers with threads refuse, too.
TEST_F(LoopbackTest, AgentsGiveUsersTheirOwnShardsOnly) {
  Running server(std::make_unique<agent::Agent::Service>(), kServices[1], "127.0.0.1:0");
  server.owners.Set("mine", kBin);
  server.owners.Set("roots", 0);
  EXPECT_EQ(Rights(kBin, kBin, server,
                   "ReadShard:mine VerifyShard:mine ReadWorkerLog:mine ReadShard:roots "
                   "VerifyShard:roots ReadWorkerLog:roots ReadShard:new Dump"),
            "yyynnnnn")
      << last_;
}

TEST_F(LoopbackTest, IPv6AndNames) {
  EXPECT_EQ(Rights(kBin, kBin, *Start({}, "localhost:0")), "nnyn") << last_;
  EXPECT_EQ(Rights(0, 0, *Start({}, "localhost:0")), "yyyy") << last_;
  const UniqueFd probe(::socket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 here{};
  here.sin6_family = AF_INET6;
  here.sin6_addr = in6addr_loopback;
  if (::bind(probe.get(), reinterpret_cast<sockaddr*>(&here), sizeof(here)) != 0) {
    GTEST_SKIP() << "this machine has no ::1";
  }
  EXPECT_EQ(Rights(kBin, kBin, *Start({}, "[::1]:0")), "nnyn") << last_;
  EXPECT_EQ(Rights(0, 0, *Start({}, "[::1]:0")), "yyyy") << last_;
}

TEST(PlainTest, LoopbackWithoutTlsIsRefusedAndTheKeyIsNamed) {
  for (const char* address : {"127.0.0.1:0", "localhost:0", "[::1]:0"}) {
    const Endpoint endpoint = *ParseEndpoint(address);
    const Status refused = CheckPlain(endpoint, {}, "listen");
    EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument) << address;
    EXPECT_THAT(refused.message(), HasSubstr("insecure_loopback = true"));
    EXPECT_FALSE(MakeServerCredentials(endpoint, {}, "listen")) << address;
    EXPECT_TRUE(MakeServerCredentials(endpoint, kPlain, "listen")) << address;
  }
  EXPECT_TRUE(CheckPlain(*ParseEndpoint("unix:/run/c.sock"), {}, "listen").ok());
  EXPECT_FALSE(CheckPlain(*ParseEndpoint("10.0.0.1:1"), kPlain, "listen").ok()) << "not loopback";
}

/// A connection over loopback, without gRPC.
struct Connection {
  Connection() {
    listener = UniqueFd(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size);
    port = ntohs(at.sin_port);
    client = UniqueFd(::socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(::fchown(client.get(), kBin, kBin), 0);
    EXPECT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
    ::getsockname(client.get(), reinterpret_cast<sockaddr*>(&at), &size);
    peer = fmt::format("ipv4:127.0.0.1:{}", ntohs(at.sin_port));
  }
  UniqueFd listener, client;
  uint16_t port = 0;
  std::string peer;
};

TEST_F(LoopbackTest, AClosedConnectionBelongsToNoUserAndNotToRoot) {
  Connection connection;
  auto owner = OwnerOfPeer(connection.peer, "127.0.0.1", connection.port);
  ASSERT_TRUE(owner) << owner.error().ToString();
  EXPECT_EQ(*owner, kBin);
  ::shutdown(connection.client.get(), SHUT_WR);
  EXPECT_FALSE(OwnerOfPeer(connection.peer, "127.0.0.1", connection.port)) << "half closed";
  connection.client.Reset();  // the kernel keeps the socket, as one of user 0
  owner = OwnerOfPeer(connection.peer, "127.0.0.1", connection.port);
  ASSERT_FALSE(owner) << "uid " << *owner;
  EXPECT_EQ(owner.error().code(), ErrorCode::kPermissionDenied);
}

TEST(SocketOwnerTest, OnlyAddressesHaveOwners) {
  for (const char* bad : {"", "unix:", "unix:/a", "ipv4:127.0.0.1", "ipv4:127.0.0.1:", "ipv4:x:1",
                          "ipv4:127.0.0.1:99999", "ipv6:%5B::1%5D:1x"}) {
    auto owner = OwnerOfPeer(bad, "127.0.0.1", 1);
    ASSERT_FALSE(owner) << bad;
    EXPECT_EQ(owner.error().code(), ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(SocketOwnerTest, ASocketThatListensAtThePortIsNoPeer) {
  Connection listening;
  auto owner = OwnerOfPeer(fmt::format("ipv4:127.0.0.1:{}", listening.port), "127.0.0.1", 9);
  ASSERT_FALSE(owner) << "uid " << *owner;
}

}  // namespace
}  // namespace holdfast::coord
