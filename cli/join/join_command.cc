#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>

#include "base/certificates/authority.h"
#include "base/certificates/certificate.h"
#include "base/certificates/join_token.h"
#include "base/certificates/private_key.h"
#include "base/certificates/request.h"
#include "base/endpoint.h"
#include "cli/cluster/rpc.h"
#include "cli/core/command.h"
#include "cli/core/interrupt.h"
#include "cli/join/commands.h"
#include "cli/join/layout.h"
#include "coordinator/api/certificates.grpc.pb.h"
#include "coordinator/api/channel.h"
#include "coordinator/api/convert.h"

namespace holdfast::cli {
namespace {

constexpr const char* kJoinFooter = R"(
The machine makes a key, which never leaves it. Before it sends anything of the token, it checks
that the server has a coordinator's certificate of the authority whose hash is in the token.

A token of the role agent makes the machine a node: the command writes its certificate and
agent.toml, and prints the next step. Any other role makes the caller an operator, runner or viewer:
the command writes a certificate and cli.toml, which `holdfast` reads. A configuration that is there
becomes FILE.before-join.

Examples:
  holdfast join node-1:7073 holdfast1.0b6c…             this machine becomes a node
  holdfast join node-1:7073 holdfast1.0b6c… --name n3 --address 10.0.0.3
  holdfast join node-1:7073,node-2:7073,node-3:7073 holdfast1.0b6c…
)";

constexpr int64_t kNanosInSecond = 1'000'000'000;
constexpr mode_t kStateFolderMode = 0700;
constexpr mode_t kCaMode = 0644;
constexpr mode_t kIdentityMode = 0600;
constexpr size_t kJoinTries = 3;
// Of several coordinators, each is asked for this part of the timeout.
constexpr int64_t kTriesOfAll = 5;

std::string HostName() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

class JoinCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("join", "Join a cluster with a token");
    command->footer(kJoinFooter);
    command
        ->add_option("ENDPOINT", endpoint_,
                     "Where machines join: HOST:PORT; of several coordinators: separated by commas")
        ->required()
        ->check(EndpointCheck());
    command->add_option("TOKEN", token_, "The line of `holdfast token create`; -: read from stdin")
        ->required();
    command->add_option("--name", name_, "Name of the node or person; default: the host's name")
        ->check(NameCheck("name"));
    command->add_option("--address", address_,
                        "Host name or IP address at which other nodes reach this one; default: the "
                        "name");
    command->add_option("--config-dir", layout_.config_dir,
                        "Folder of the configuration; default: /etc/holdfast, for a person without "
                        "root ~/.config/holdfast");
    command->add_option("--state-dir", layout_.state_dir, "Folder of a node's certificate and key")
        ->capture_default_str();
    command->add_option("--user", layout_.user,
                        "User of the agent; default: holdfast, if there is one");
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(const std::string text, TokenText());
    HOLDFAST_ASSIGN_OR_RETURN(const auto token, certificates::JoinToken::Parse(text));
    HOLDFAST_ASSIGN_OR_RETURN(const auto endpoints, ParseEndpointList(endpoint_));
    for (const Endpoint& endpoint : endpoints) {
      if (endpoint.kind == Endpoint::Kind::kTcp) continue;
      return Fail(InvalidArgumentError("ENDPOINT: use HOST:PORT, the coordinator's join.listen"));
    }
    if (name_.empty()) name_ = HostName();
    HOLDFAST_RETURN_IF_ERROR(ValidateName("--name", name_));
    if (address_.empty()) address_ = name_;
    HOLDFAST_RETURN_IF_ERROR(certificates::ValidateHost("--address", address_));
    HOLDFAST_RETURN_IF_ERROR(CheckFolders());
    HOLDFAST_ASSIGN_OR_RETURN(const auto key, certificates::PrivateKey::Generate());
    HOLDFAST_ASSIGN_OR_RETURN(const auto reply, Enroll(endpoints, token, key, context));
    HOLDFAST_RETURN_IF_ERROR(CheckReply(reply, token, key, context));
    const std::string identity = reply.certificate_pem() + key.ToPem();
    const bool node = reply.role() == "agent";
    HOLDFAST_RETURN_IF_ERROR(node ? WriteNode(reply, identity) : WritePerson(reply, identity));
    Print(context, reply, node);
    return ExitCode::kOk;
  }

 private:
  Result<std::string> TokenText() const {
    if (token_ != "-") return token_;
    std::string text;
    std::array<char, 512> buffer{};
    for (ssize_t got = 0; text.size() < buffer.size();) {
      got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
      if (got <= 0) break;
      text.append(buffer.data(), static_cast<size_t>(got));
    }
    return text.substr(0, text.find_first_of("\r\n"));
  }

  /// A token works once: what can fail here fails before its use.
  Status CheckFolders() {
    auto owner = OwnerOf(layout_);
    if (!owner) return owner.error();
    owner_ = *owner;
    const std::string writable =
        layout_.config_dir.empty() ? OperatorConfigDir() : layout_.config_dir;
    HOLDFAST_RETURN_IF_ERROR(MakeFolder(writable, 0755, std::nullopt));
    if (::access(writable.c_str(), W_OK) != 0) return ErrnoStatus(errno, "write in " + writable);
    layout_.config_dir = writable;
    return Status::Ok();
  }

  /// Asks one coordinator. `timeout_ms`: how long it may be silent.
  Result<coordinator::EnrollReply> EnrollAt(const Endpoint& endpoint,
                                            const coordinator::EnrollRequest& request,
                                            const std::string& ca_hash, int64_t timeout_ms,
                                            Context& context) const {
    const auto pinned = std::make_shared<Result<std::string>>("");
    coordinator::Enrollment::Stub stub(
        coord::MakePinnedChannel(endpoint, ca_hash, context.clock, pinned));
    coordinator::EnrollReply reply;
    grpc::ClientContext call;
    SilenceGuard guard(call, timeout_ms, context.clock);
    OnInterrupt cancel([&call] { call.TryCancel(); });
    grpc::Status finished = stub.Enroll(&call, request, &reply);
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    if (!*pinned) return Fail(pinned->error());
    if (guard.expired()) finished = {grpc::StatusCode::DEADLINE_EXCEEDED, "silent"};
    if (!finished.ok()) {
      return Fail(FromTransport(finished, "the coordinator at " + endpoint.ToString(), timeout_ms,
                                "is this its join.listen, and does it run?"));
    }
    HOLDFAST_RETURN_IF_ERROR(coord::FromProto(reply.outcome()));
    return reply;
  }

  /// Asks the coordinators in turn until the one that leads answers.
  Result<coordinator::EnrollReply> Enroll(const std::vector<Endpoint>& endpoints,
                                          const certificates::JoinToken& token,
                                          const certificates::PrivateKey& key, Context& context) {
    HOLDFAST_ASSIGN_OR_RETURN(const auto signing, certificates::Request::Make(key));
    coordinator::EnrollRequest request;
    request.set_token_id(token.id);
    request.set_secret(token.secret);
    request.set_name(name_);
    request.set_request_pem(signing.ToPem());
    if (address_ != name_) request.add_hosts(address_);
    const int64_t timeout_ms = context.options.timeout_ms;
    const auto until = context.clock.Now() + std::chrono::milliseconds(timeout_ms);
    const bool several = endpoints.size() > 1;
    for (size_t tries = 1;; ++tries) {
      auto reply = EnrollAt(endpoints[(tries - 1) % endpoints.size()], request, token.ca_hash,
                            several ? timeout_ms / kTriesOfAll : timeout_ms, context);
      if (reply) return reply;
      // The same key may use the token again: the answer may have been lost.
      const ErrorCode code = reply.error().code();
      const bool again = several ? context.clock.Now() < until : tries < kJoinTries;
      if (!again ||
          (code != ErrorCode::kUnavailable && !(several && code == ErrorCode::kDeadlineExceeded))) {
        return reply;
      }
      HOLDFAST_RETURN_IF_ERROR(Interrupt::SleepFor(kRetryPauseMs));
    }
  }

  Status CheckReply(const coordinator::EnrollReply& reply, const certificates::JoinToken& token,
                    const certificates::PrivateKey& key, Context& context) const {
    Status bad = InternalError("the coordinator sent a certificate that is not for this key");
    auto certificate = certificates::Certificate::FromPem(reply.certificate_pem());
    auto accepted = certificates::Certificate::AllFromPem(reply.ca_pem());
    if (!certificate || !accepted || certificate->Hash() != key.Hash()) return bad;
    bool known = false;
    for (const auto& one : *accepted) {
      known = known || (one.Hash() == token.ca_hash && certificate->SignedBy(one));
    }
    if (!known) return bad;
    return certificates::CheckValidity(*certificate, "the new certificate",
                                       context.clock.WallNanos() / kNanosInSecond);
  }

  Status WriteNode(const coordinator::EnrollReply& reply, const std::string& identity) const {
    HOLDFAST_RETURN_IF_ERROR(MakeFolder(layout_.state_dir, kStateFolderMode, owner_));
    const std::string path = layout_.identity("agent");
    HOLDFAST_RETURN_IF_ERROR(
        certificates::ReplaceFile(layout_.ca(), reply.ca_pem(), kCaMode, owner_));
    HOLDFAST_RETURN_IF_ERROR(certificates::ReplaceFile(path, identity, kIdentityMode, owner_));
    const bool v6 = address_.find(':') != std::string::npos;
    const std::string host = v6 ? "[" + address_ + "]" : address_;
    return WriteConfig(
        layout_.config("agent"),
        fmt::format(
            "# Written by `holdfast join`. `holdfast-agent --print-config` shows all keys.\n"
            "cluster = {}\nnode = {}\ncoordinator = {}\ndata_listen = {}\n\n"
            "[peers]\nlisten = {}\n\n"
            "[tls]\nca = {}\ncert = {}\nkey = {}\nrenew = true\n",
            Quoted(reply.cluster()), Quoted(name_), Quoted(reply.coordinator()),
            Quoted(host + ":7071"), Quoted(host + ":7072"), Quoted(layout_.ca()), Quoted(path),
            Quoted(path)));
  }

  Status WritePerson(const coordinator::EnrollReply& reply, const std::string& identity) const {
    return WriteOperator(layout_, reply.coordinator(), reply.ca_pem(), identity);
  }

  void Print(Context& context, const coordinator::EnrollReply& reply, bool node) const {
    const std::string file = node ? layout_.config("agent") : layout_.cli_config();
    if (context.output.json()) {
      context.output.WriteJson("join", {{"cluster", reply.cluster()},
                                        {"role", reply.role()},
                                        {"name", name_},
                                        {"coordinator", reply.coordinator()},
                                        {"config", file}});
      return;
    }
    context.output.Write(fmt::format("joined cluster {} as {} {}; wrote {}\n", reply.cluster(),
                                     reply.role(), name_, file));
    context.output.Write(node ? "next: systemctl enable --now holdfast-keeper holdfast-agent\n"
                              : "next: holdfast status\n");
  }

  std::string endpoint_;
  std::string token_;
  std::string name_;
  std::string address_;
  Layout layout_{.config_dir = "", .state_dir = Layout().state_dir, .user = ""};
  std::optional<certificates::FileOwner> owner_;
};

}  // namespace

std::unique_ptr<Command> MakeJoinCommand() { return std::make_unique<JoinCommand>(); }

}  // namespace holdfast::cli
