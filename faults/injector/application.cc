#include "faults/injector/application.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>

#include "base/certificates/identity_file.h"
#include "base/certificates/revoked_names.h"
#include "base/clock.h"
#include "base/endpoint.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/log_level.h"
#include "base/service_manager.h"
#include "coordinator/api/caller.h"
#include "coordinator/api/channel.h"
#include "coordinator/api/leader_channel.h"
#include "coordinator/api/trust_follower.h"
#include "faults/injector/node_faults.h"
#include "faults/injector/order_book.h"
#include "faults/injector/service.h"

namespace holdfast::faults {
namespace {
constexpr int kThreadsMax = 16;
constexpr int kMessageBytesMax = 1 << 20;

Result<UniqueFd> LockFolder(const std::string& folder) {
  const std::string path = folder + "/injector.lock";
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) return Fail(ErrnoStatus(errno, "open " + path));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  return Fail(AlreadyExistsError("another holdfast-fault uses run_dir " + folder +
                                 ": stop it, or set another run_dir for this one"));
}

/// Whether this injector has an agent's certificate: the coordinator sends the revoked names to
/// agents only.
bool IsAgent(const coord::TlsFiles& tls) {
  const auto own = certificates::ReadIdentity({tls.cert, tls.key});
  if (!own) return false;
  const auto uris = own->SpiffeUris();
  if (uris.empty()) return true;
  const auto name = coord::ParseSpiffeName(uris.front());
  return name && name->role == coord::Role::kAgent;
}

Status Serve(const InjectorConfig& config, mode_t umask, const sigset_t& ends,
             const ServiceManager& manager, Clock& clock) {
  HOLDFAST_RETURN_IF_ERROR(config.Check());
  HOLDFAST_ASSIGN_OR_RETURN(const LogLevel level, ParseLogLevel(config.log_level));
  ConfigureLog("fault", level);
  HOLDFAST_ASSIGN_OR_RETURN(const auto book, OrderBook::Open(config.run_dir + "/drills", clock));
  HOLDFAST_ASSIGN_OR_RETURN(const UniqueFd lock, LockFolder(config.run_dir));
  book->Watch();  // undoes what an earlier injector and its processes left
  NodeFaults faults(
      {config.agent_run_dir, config.data_dirs, config.coordinator, config.restart_servers, umask},
      *book);
  InjectorService service({config.cluster, config.node, config.drills_enabled}, faults, *book,
                          clock);
  HOLDFAST_ASSIGN_OR_RETURN(Endpoint listen, ParseEndpoint(config.listen));
  HOLDFAST_ASSIGN_OR_RETURN(const auto guarded,
                            coord::GuardedService::Make(service, FaultInjector::service_full_name(),
                                                        config.cluster, config.access, clock));
  certificates::RevokedNames revoked;
  guarded->callers().Refuse(revoked);
  std::unique_ptr<coord::LeaderChannel> coordinators;
  std::unique_ptr<coord::TrustFollower> follower;
  if (config.tls.configured() && IsAgent(config.tls)) {
    HOLDFAST_ASSIGN_OR_RETURN(coordinators,
                              coord::LeaderChannel::Make(config.coordinator, config.tls));
    follower = std::make_unique<coord::TrustFollower>(*coordinators, revoked, nullptr, clock);
    follower->Start();
  } else if (config.tls.configured()) {
    Log(LogLevel::kWarn, "RevokedNamesUnknown",
        {Kv("why", "tls.cert is not the certificate of this node's agent"),
         Kv("effect", "revoked certificates are accepted until they end")});
  }
  HOLDFAST_ASSIGN_OR_RETURN(
      const auto server,
      coord::StartServer(*guarded, listen, config.tls, "listen", kMessageBytesMax, kThreadsMax));
  Log(LogLevel::kInfo, "InjectorReady",
      {Kv("cluster", config.cluster), Kv("node", config.node), Kv("listen", listen.ToString()),
       Kv("enabled", config.drills_enabled), Kv("pid", ::getpid())});
  manager.Ready();
  const auto interval = std::chrono::nanoseconds(manager.watch_interval());
  const timespec tick{interval.count() / 1'000'000'000, interval.count() % 1'000'000'000};
  std::string refusal;
  while (refusal.empty() && ::sigtimedwait(&ends, nullptr, &tick) < 0) {
    book->Watch();
    manager.Alive();
    if (follower != nullptr) refusal = follower->refusal();
  }
  manager.Stopping();
  server->Shutdown(std::chrono::system_clock::time_point());
  Log(LogLevel::kInfo, "InjectorStopped");
  if (refusal.empty()) return Status::Ok();
  return PermissionDeniedError("the coordinator refuses this injector's certificate: " + refusal);
}
}  // namespace

int RunInjector(const InjectorConfig& config, Clock& clock) {
  const ServiceManager manager = ServiceManager::FromEnvironment();
  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGTERM);
  ::sigaddset(&ends, SIGINT);
  // Blocked before any thread exists, so that only this thread takes these signals.
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  const mode_t umask = ::umask(077);  // the socket and the orders are for this user only
  const Status status = Serve(config, umask, ends, manager, clock);
  if (status.ok()) return 0;
  std::fprintf(stderr, "holdfast-fault: %s\n", status.message().c_str());
  return 1;
}

}  // namespace holdfast::faults
