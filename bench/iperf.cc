#include "bench/iperf.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/fd.h"

namespace holdfast::bench {
namespace {

constexpr int kConnectAttempts = 100;

/// Returns a port that is unused now.
Result<uint16_t> FreePort() {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  auto* where = reinterpret_cast<sockaddr*>(&address);
  if (::bind(fd.get(), where, bytes) != 0 || ::getsockname(fd.get(), where, &bytes) != 0) {
    return Fail(ErrnoStatus(errno, "bind a loopback port"));
  }
  return ntohs(address.sin_port);
}

std::string OutputOf(const std::string& command) {
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string out;
  if (!pipe) return out;
  std::array<char, 4096> block{};
  for (size_t n; (n = fread(block.data(), 1, block.size(), pipe.get())) > 0;) {
    out.append(block.data(), n);
  }
  return out;
}

}  // namespace

Result<IperfServer> IperfServer::Start() {
  HOLDFAST_ASSIGN_OR_RETURN(const uint16_t port, FreePort());
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::array<std::string, 6> words = {"iperf3",    "-s", "-B",
                                      "127.0.0.1", "-p", std::to_string(port)};
  std::array<char*, words.size() + 1> arguments{};
  std::transform(words.begin(), words.end(), arguments.begin(),
                 [](std::string& word) { return word.data(); });
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, "iperf3", &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return Fail(NotFoundError("iperf3 did not start: deploy/install-deps.sh --bench installs it"));
  }
  return IperfServer(pid, port);
}

IperfServer::IperfServer(IperfServer&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), port_(other.port_) {}

IperfServer::~IperfServer() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

Result<double> IperfServer::Run(int streams, int seconds) const {
  const std::string command =
      fmt::format("iperf3 -c 127.0.0.1 -p {} -P {} -t {} -J 2>/dev/null", port_, streams, seconds);
  for (int attempt = 0; attempt < kConnectAttempts; ++attempt) {
    // A server that has just started or just ended a test may not listen yet.
    const auto document = nlohmann::json::parse(OutputOf(command), nullptr, false);
    if (document.is_object() && document.contains("end") &&
        document["end"].contains("sum_received")) {
      return document["end"]["sum_received"]["bits_per_second"].get<double>() / 8;
    }
    Clock::Real().SleepFor(std::chrono::milliseconds(50));
  }
  return Fail(UnavailableError("iperf3 returned no result"));
}

}  // namespace holdfast::bench
