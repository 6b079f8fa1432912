#include "coordinator/server/application.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/log_level.h"
#include "base/service_manager.h"
#include "coordinator/server/coordinator_server.h"

namespace holdfast::coord {
namespace {
/// Writes the listening address to a file for scripts. The file gets its final name when it is
/// complete.
Status WriteEndpointFile(const std::string& data_dir, const std::string& endpoint) {
  const std::string path = data_dir + "/endpoint";
  const std::string temporary = path + ".tmp";
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, "create " + temporary);
  const std::string text = endpoint + "\n";
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return ErrnoStatus(errno, "write " + temporary);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) return ErrnoStatus(errno, "rename " + path);
  return Status::Ok();
}

/// Raises the soft limit of descriptors, often 1,024, to the hard one: each agent has a connection.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Waits for a signal and returns it. Until then, the applier reports to the service manager after
/// its batches that the process makes progress.
int AwaitSignal(CoordinatorServer& server, const ServiceManager& manager, const sigset_t& signals) {
  const auto interval = std::chrono::nanoseconds(manager.watch_interval());
  const timespec pause{interval.count() / 1'000'000'000, interval.count() % 1'000'000'000};
  // Shared with a report that may still be queued when this function returns.
  const auto reported = std::make_shared<std::atomic<bool>>(true);
  for (;;) {
    const int signal = ::sigtimedwait(&signals, nullptr, &pause);
    if (signal > 0) return signal;
    if (!reported->exchange(false)) continue;
    server.AfterNextBatch([manager, reported] {
      manager.Alive();
      reported->store(true);
    });
  }
}

/// A relay waits for a signal and has nothing to report to the service manager meanwhile.
Status ServeRelay(const CoordinatorConfig& config, const sigset_t& signals,
                  const ServiceManager& manager, Clock& clock) {
  HOLDFAST_ASSIGN_OR_RETURN(auto server, relay::RelayServer::Start(RelayOptionsOf(config), clock));
  Log(LogLevel::kInfo, "RelayListening",
      {Kv("endpoint", server->endpoint().ToString()), Kv("cluster", config.cluster)});
  manager.Ready();
  const auto interval = std::chrono::nanoseconds(manager.watch_interval());
  const timespec pause{interval.count() / 1'000'000'000, interval.count() % 1'000'000'000};
  int signal = 0;
  while ((signal = ::sigtimedwait(&signals, nullptr, &pause)) <= 0) manager.Alive();
  Log(LogLevel::kInfo, "RelayStopping", {Kv("signal", signal)});
  manager.Stopping();
  return Status::Ok();
}

Status Serve(const CoordinatorConfig& config, const sigset_t& signals,
             const ServiceManager& manager, Clock& clock) {
  HOLDFAST_ASSIGN_OR_RETURN(LogLevel level, ParseLogLevel(config.log_level));
  if (config.role == kRelayRole) {
    ConfigureLog("relay", level);
    return ServeRelay(config, signals, manager, clock);
  }
  ConfigureLog("coordinator", level);
  HOLDFAST_ASSIGN_OR_RETURN(Endpoint wanted, ParseEndpoint(config.listen));
  ::unlink((config.data_dir + "/endpoint").c_str());  // of an earlier start
  HOLDFAST_ASSIGN_OR_RETURN(auto server, CoordinatorServer::Start(config, clock));
  const std::string endpoint = server->endpoint().ToString();
  if (wanted.kind == Endpoint::Kind::kTcp && wanted.port == 0) {
    HOLDFAST_RETURN_IF_ERROR(WriteEndpointFile(config.data_dir, endpoint));
  }
  Log(LogLevel::kInfo, "CoordinatorListening",
      {Kv("endpoint", endpoint), Kv("epoch", server->epoch().value),
       Kv("cluster", config.cluster)});
  manager.Ready();
  const int signal = AwaitSignal(*server, manager, signals);
  Log(LogLevel::kInfo, "CoordinatorStopping", {Kv("signal", signal)});
  manager.Stopping();
  return Status::Ok();
}
}  // namespace

int Application::Run() {
  const ServiceManager manager = ServiceManager::FromEnvironment();
  // Block the signals before any thread starts: all threads inherit the mask, so sigtimedwait
  // receives the signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();
  ::umask(077);  // the store has the environments of runs, which may contain keys
  Status status = Serve(config_, signals, manager, clock_);
  if (status.ok()) return 0;
  std::fprintf(stderr, "holdfast-coordinator: %s\n", status.message().c_str());
  return 1;
}

}  // namespace holdfast::coord
