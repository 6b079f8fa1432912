#include "testing/etcd/members.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/fd.h"
#include "coordinator/etcd/client.h"
#include "testing/cluster/cluster.h"

namespace holdfast::local {
namespace {
constexpr int kMembers = 3;
constexpr std::chrono::milliseconds kStartTimeout(60'000);
constexpr std::chrono::milliseconds kCallTimeout(2'000);
constexpr const char* kProgram = "/usr/bin/etcd";

/// Returns addresses whose ports are free now, all different.
std::vector<std::string> FreeAddresses(int count) {
  std::vector<UniqueFd> held;
  std::vector<std::string> addresses;
  for (int i = 0; i < count; ++i) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) break;
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) break;
    addresses.push_back("127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
    held.push_back(std::move(fd));
  }
  return addresses;
}
}  // namespace

bool HasEtcd() { return ::access(kProgram, X_OK) == 0; }

EtcdMembers::EtcdMembers(std::string dir, std::vector<std::string> arguments, EtcdTls tls)
    : dir_(std::move(dir)), arguments_(std::move(arguments)), tls_(std::move(tls)) {
  processes_.resize(kMembers);
  const std::vector<std::string> addresses = FreeAddresses(2 * kMembers);
  clients_.assign(addresses.begin(), addresses.begin() + kMembers);
  peers_.assign(addresses.begin() + kMembers, addresses.end());
}

EtcdMembers::~EtcdMembers() { Signal(SIGKILL); }

void EtcdMembers::Signal(int signal) {
  for (Process& process : processes_) {
    if (process.running()) process.Signal(signal);
  }
}

std::string EtcdMembers::url() const {
  std::string url;
  for (const std::string& client : clients_) url += (url.empty() ? "etcd://" : ",") + client;
  return url;
}

std::string EtcdMembers::Log(int member) const {
  return dir_ + "/member" + std::to_string(member) + ".log";
}

Status EtcdMembers::StartMember(int member) {
  std::string all;
  for (int i = 0; i < kMembers; ++i) {
    all += (all.empty() ? "m" : ",m") + std::to_string(i) + "=http://" + peers_[i];
  }
  const std::string client = ClientScheme() + clients_[member];
  const std::string peer = "http://" + peers_[member];
  ProcessOptions process;
  process.argv = {kProgram,
                  "--name=m" + std::to_string(member),
                  "--data-dir=" + dir_ + "/member" + std::to_string(member),
                  "--listen-client-urls=" + client,
                  "--advertise-client-urls=" + client,
                  "--listen-peer-urls=" + peer,
                  "--initial-advertise-peer-urls=" + peer,
                  "--initial-cluster=" + all,
                  "--initial-cluster-state=new",
                  "--log-level=error"};
  if (tls_.configured()) {
    process.argv.insert(process.argv.end(),
                        {"--cert-file=" + tls_.cert, "--key-file=" + tls_.key,
                         "--trusted-ca-file=" + tls_.ca, "--client-cert-auth=true"});
  }
  process.argv.insert(process.argv.end(), arguments_.begin(), arguments_.end());
  process.log_path = Log(member);
  HOLDFAST_ASSIGN_OR_RETURN(processes_[static_cast<size_t>(member)], Process::Start(process));
  return Status::Ok();
}

bool EtcdMembers::Answers() {
  std::vector<Endpoint> members;
  for (const std::string& client : clients_) members.push_back(ParseEndpoint(client).value());
  auto client = coord::EtcdClient::Make(members, {tls_.ca, tls_.cert, tls_.key});
  if (!client) return false;
  coord::etcd::RangeRequest request;
  request.set_key("/ready");
  for (int i = 0; i < kMembers; ++i) {
    if ((*client)->Range(request, kCallTimeout)) return true;
  }
  return false;
}

Status EtcdMembers::Start() {
  std::error_code error;
  std::filesystem::create_directories(dir_, error);
  if (error) return ErrnoStatus(error.value(), "mkdir " + dir_);
  for (int member = 0; member < kMembers; ++member) {
    HOLDFAST_RETURN_IF_ERROR(StartMember(member));
  }
  if (WaitUntil([this] { return Answers(); }, kStartTimeout)) return Status::Ok();
  return UnavailableError("etcd did not start:\n" + ReadAll(Log(0)));
}

}  // namespace holdfast::local
