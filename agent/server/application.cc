#include "agent/server/application.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "agent/api/socket.h"
#include "agent/arena/arena.h"
#include "agent/peers/tcp_server.h"
#include "agent/peers/tcp_transport.h"
#include "agent/pipeline/node.h"
#include "agent/pipeline/rank_status.h"
#include "agent/server/agent_identity.h"
#include "agent/server/data_service.h"
#include "agent/server/file_owners.h"
#include "agent/server/grpc_link.h"
#include "agent/server/host_warnings.h"
#include "agent/server/metrics.h"
#include "agent/server/self_tester.h"
#include "agent/server/telemetry_sender.h"
#include "agent/telemetry/gpu_watch.h"
#include "agent/workers/manager.h"
#include "base/endpoint.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/log_level.h"
#include "base/metrics/metrics_server.h"
#include "base/process.h"
#include "coordinator/api/certificate_keeper.h"
#include "storage/remote/remote_directory.h"
#include "storage/remote/remote_url.h"
#include "storage/volume/quota_volume.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {
namespace {
constexpr mode_t kRunDirMode = 0755;
constexpr mode_t kTrainerSocketMode = 0666;  // SO_PEERCRED decides what a process may do
// Threads of the data service, for reads and other requests of operators.
constexpr int kDataThreadsMax = 48;
// How long the agent verifies memory before it reports this node's replicas to the coordinator.
constexpr int64_t kAdoptWaitMs = 30'000;
// How long a stop waits for the file systems of shared tiers.
constexpr int64_t kSharedTiersStopMs = 10'000;
// A predecessor that was just killed may hold the lock for another moment.
constexpr int kLockAttempts = 20;

/// "3-120", or "0-0" for none.
std::string NumberOf(const std::optional<VersionId>& version) {
  return ToString(version.value_or(VersionId{}));
}

Status MakeRunDir(const std::string& path) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string prefix = path.substr(0, slash);
    const bool made = ::mkdir(prefix.c_str(), kRunDirMode) == 0;
    if (!made && errno != EEXIST) return ErrnoStatus(errno, "run_dir: mkdir " + prefix);
    // Independent of the umask: trainers of other users need access through the directory.
    if (made && ::chmod(prefix.c_str(), kRunDirMode) != 0) {
      return ErrnoStatus(errno, "run_dir: chmod " + prefix);
    }
    if (slash == std::string::npos) break;
  }
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, "run_dir: stat " + path);
  if (!S_ISDIR(info.st_mode)) {
    return InvalidArgumentError("run_dir " + path + " is not a directory");
  }
  if (info.st_uid != ::geteuid()) {
    return PermissionDeniedError(
        fmt::format("run_dir {} belongs to uid {}, but the agent runs as uid {}", path, info.st_uid,
                    ::geteuid()));
  }
  // Trainers of other users reach the socket through the directory, and must not create files in
  // it.
  if (::chmod(path.c_str(), kRunDirMode) != 0) return ErrnoStatus(errno, "run_dir: chmod " + path);
  return Status::Ok();
}

Result<UniqueFd> LockRunDir(const std::string& run_dir, Clock& clock) {
  const std::string path = run_dir + "/agent.lock";
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!lock.valid()) return Fail(ErrnoStatus(errno, "open " + path));
  for (int attempt = 1; ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0; ++attempt) {
    if (errno != EWOULDBLOCK) return Fail(ErrnoStatus(errno, "flock " + path));
    if (attempt >= kLockAttempts) {
      char pid[32] = {};
      [[maybe_unused]] ssize_t got = ::pread(lock.get(), pid, sizeof(pid) - 1, 0);
      return Fail(AlreadyExistsError(
          fmt::format("another agent (process {}) uses run_dir {}: stop it, or set another run_dir "
                      "for this one",
                      pid, run_dir)));
    }
    clock.SleepFor(std::chrono::milliseconds(100));
  }
  const std::string pid = std::to_string(::getpid());
  if (::ftruncate(lock.get(), 0) != 0 ||
      ::pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return Fail(ErrnoStatus(errno, "write " + path));
  }
  return lock;
}

uint32_t DiskFreePercent(const std::vector<std::string>& dirs) {
  uint64_t least = 100;
  for (const std::string& dir : dirs) {
    struct statvfs info {};
    if (::statvfs(dir.c_str(), &info) != 0 || info.f_blocks == 0) continue;
    least = std::min<uint64_t>(least, info.f_bavail * 100 / info.f_blocks);
  }
  return static_cast<uint32_t>(least);
}

/// The self-test before the node leaves quarantine. It is smaller than that of `holdfast doctor`,
/// since the agent and trainers of other jobs still use the node.
selftest::SelfTestOptions SelfTestOf(const std::vector<std::string>& data_dirs) {
  selftest::SelfTestOptions options;
  options.memory.bytes = uint64_t{256} << 20U;
  options.memory.seconds = 2;
  options.disk.bytes = uint64_t{64} << 20U;
  options.disk.seconds = 4;
  options.data_dirs = data_dirs;
  return options;
}

class AgentApplication final : public Application {
 public:
  AgentApplication(const AgentConfig& config, Clock& clock, const ServiceManager& manager,
                   const WorkerDefaults& workers)
      : config_(config.Resolved()), clock_(clock), manager_(manager), worker_defaults_(workers) {}
  ~AgentApplication() override { Stop(); }

  Status Open();
  Status Serve();
  bool Tick() override;
  const std::string& data_address() const override { return data_address_; }
  void Stop() override {
    StopWithin([] { return false; });
  }
  void StopWithin(const std::function<bool()>& interrupted) override;

 private:
  /// Brings the newest versions to disk, and logs what was reached.
  void Depart(const std::function<bool()>& interrupted);
  Status OpenVolume();
  Status OpenRemote();
  Status OpenArena();
  /// Returns what earlier starts of this agent saw of the coordinator's store.
  SeenLife ReadSeenLife() const;
  Status OpenLink(std::unique_ptr<coord::LeaderChannel> coordinators, const SeenLife& seen);
  Status OpenPeers();
  void OpenNode(const SeenLife& seen);
  Status OpenWorkers();
  Status ServeMetrics();
  /// Checks the keeper, and replaces the warnings about the host.
  void WatchKeeper();

  const AgentConfig config_;
  Clock& clock_;
  const ServiceManager manager_;
  const WorkerDefaults worker_defaults_;
  UniqueFd lock_;
  coord::JobOwners owners_;
  std::unique_ptr<FileOwners> file_owners_;
  std::unique_ptr<Volume> volume_;
  PerTier<TierStore*> shared_tiers_{};
  std::unique_ptr<TierStore> remote_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<SelfTester> self_tester_;
  std::unique_ptr<GrpcCoordinatorLink> link_;
  std::unique_ptr<WorkerManager> workers_;
  std::atomic<uint64_t> peer_received_bytes_{0};
  std::unique_ptr<PeerTransport> peers_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<TcpPeerServer> peer_server_;
  std::unique_ptr<GpuWatch> gpus_;
  std::unique_ptr<TelemetrySender> telemetry_;
  certificates::RevokedNames revoked_;
  std::unique_ptr<coord::CertificateKeeper> certificates_;  // null: no TLS
  std::unique_ptr<DataService> data_;
  std::unique_ptr<coord::GuardedService> guarded_data_;
  std::unique_ptr<coord::ApiServer> data_server_;
  std::unique_ptr<coord::MetricsServer> metrics_;
  std::string data_address_;
  bool keeper_failed_ = false;
  uint64_t node_ticks_ = 0;  // at the last Tick()
  std::string io_warning_;
  std::vector<std::string> host_warnings_;
};

Status AgentApplication::OpenVolume() {
  IoOptions io;
  io.io_uring = config_.io_uring;
  io.direct = config_.direct;
  io.queue_depth = static_cast<uint32_t>(config_.queue_depth);
  std::vector<std::unique_ptr<Directory>> dirs;
  for (const std::string& path : config_.data_dirs) {
    HOLDFAST_ASSIGN_OR_RETURN(auto dir, OpenDirectory(path, io));
    dirs.push_back(std::move(dir));
  }
  io_warning_ = IoWarning(dirs);
  VolumeOptions options{config_.cluster, config_.node, io,
                        [this](const std::string& job) { return file_owners_->Of(job); }};
  HOLDFAST_ASSIGN_OR_RETURN(auto volume, Volume::Open(std::move(dirs), options, clock_));
  DiskQuotas quotas;
  quotas.job_bytes = config_.disk_bytes_per_job;
  quotas.user_bytes = config_.disk_bytes_per_user;
  quotas.owner = [this](const std::string& job) { return owners_.Find(job).uid; };
  volume_ = WithQuotas(std::move(volume), std::move(quotas), clock_);
  for (const std::string& text : volume_->recovery().quarantined) {
    Log(LogLevel::kWarn, "Quarantined", {Kv("what", text)});
  }
  return Status::Ok();
}

Status AgentApplication::OpenRemote() {
  if (config_.remote_url.empty()) return Status::Ok();
  HOLDFAST_ASSIGN_OR_RETURN(const std::string path, ParseRemoteUrl(config_.remote_url));
  RemoteOptions options;
  options.cluster = config_.cluster;
  options.io.io_uring = config_.io_uring;
  options.io.direct = config_.direct;
  options.io.queue_depth = static_cast<uint32_t>(config_.remote_requests_in_flight);
  options.access = [this](const std::string& job) { return file_owners_->Of(job); };
  // Nothing is opened here: a file system that hangs must not delay the start.
  remote_ = std::make_unique<RemoteDirectory>(FileSystemRoot(path, options.io), options, clock_);
  shared_tiers_[Tier::kRemote] = remote_.get();
  return Status::Ok();
}

Status AgentApplication::OpenWorkers() {
  WorkerManagerOptions options;
  options.folder = config_.run_dir + "/workers";
  options.log_folder = config_.workers_log_dir;
  options.agent_socket = config_.run_dir + "/agent.sock";
  options.worker_umask = worker_defaults_.umask;
  options.worker_cores = worker_defaults_.cores;
  options.default_user = config_.workers_default_user;
  HOLDFAST_ASSIGN_OR_RETURN(options.shim, SiblingProgram("holdfast-shim"));
  HOLDFAST_ASSIGN_OR_RETURN(workers_, WorkerManager::Open(
                                          options, [this] { link_->ReportNow(); }, clock_));
  return Status::Ok();
}

Status AgentApplication::OpenArena() {
  ArenaOptions arena;
  arena.budget_bytes = config_.arena_bytes;
  arena.user_bytes =
      config_.arena_bytes / 100 * static_cast<uint64_t>(config_.arena_percent_per_user);
  arena.job_bytes = config_.arena_bytes_per_job;
  arena.priority_jobs = {config_.arena_priority_jobs.begin(), config_.arena_priority_jobs.end()};
  arena.priority_bytes =
      config_.arena_bytes / 100 * static_cast<uint64_t>(config_.arena_priority_percent);
  arena.run_dir = config_.run_dir;
  arena.start_keeper = config_.start_keeper;
  HOLDFAST_ASSIGN_OR_RETURN(arena_, Arena::Open(arena, clock_));
  return Status::Ok();
}

SeenLife AgentApplication::ReadSeenLife() const {
  auto seen = volume_->ReadLife();
  if (seen) return *seen;
  // The agent works without this record, which only protects against an older copy of the
  // coordinator's store.
  Log(LogLevel::kWarn, "LifeUnknown", {Kv("error", seen.error().ToString())});
  return {};
}

Status AgentApplication::OpenLink(std::unique_ptr<coord::LeaderChannel> coordinators,
                                  const SeenLife& seen) {
  GrpcLinkOptions link;
  link.cluster = config_.cluster;
  link.node = config_.node;
  auto identity = CountStart(config_.data_dirs);
  if (!identity) {
    // An agent with a full disk can start, too: its start number matters only while another agent
    // of this node is attached.
    Log(LogLevel::kWarn, "StartNotCounted", {Kv("error", identity.error().ToString())});
  }
  link.agent_id = identity ? identity->id : 0;
  link.agent_start = identity.value_or(AgentIdentity()).StartNumber();
  link.disk_free_percent = [dirs = config_.data_dirs] { return DiskFreePercent(dirs); };
  link.arena_use = [this] {
    const ArenaUsage usage = arena_->usage();
    return ArenaUse{.bytes = usage.budget_bytes, .reserved_bytes = usage.reserved_bytes};
  };
  link.relay_return_ms = config_.relay_return_s * 1'000;
  link.no_parity = !config_.peers_enabled;
  link.peer_address = [this]() -> std::string {
    return config_.peers.advertise.empty() ? peer_server_->address() : config_.peers.advertise;
  };
  link.disk_every = static_cast<uint64_t>(config_.disk_every_steps);
  link.shared_tiers = TierMask([this](Tier tier) { return shared_tiers_[tier] != nullptr; });
  link.seen = seen;
  link.store_seen = [this](const SeenLife& now) { return volume_->WriteLife(now); };
  HOLDFAST_ASSIGN_OR_RETURN(link.labels, config_.Labels());
  if (config_.workers_enabled) {
    link.worker_address = config_.workers_address;
    link.workers = [this] { return workers_->Workers(); };
    link.set_workers = [this](SetWorkers wanted) { workers_->SetWanted(std::move(wanted)); };
  }
  link.owners = &owners_;
  self_tester_ = std::make_unique<SelfTester>(SelfTestOf(config_.data_dirs));
  link.self_tester = self_tester_.get();
  link_ = std::make_unique<GrpcCoordinatorLink>(std::move(link), std::move(coordinators), clock_);
  return Status::Ok();
}

Status AgentApplication::OpenPeers() {
  const PeerTlsFiles tls{config_.tls.ca, config_.tls.cert, config_.tls.key};
  TcpTransportOptions transport =
      config_.peers.TransportOptions(config_.cluster, config_.node, tls);
  transport.received_bytes = &peer_received_bytes_;
  transport.revoked = &revoked_;
  HOLDFAST_ASSIGN_OR_RETURN(peers_, MakeTcpTransport(transport, clock_));
  return Status::Ok();
}

void AgentApplication::OpenNode(const SeenLife& seen) {
  NodeOptions node;
  node.seen_life = seen;
  node.node = config_.node;
  node.trainers_file = config_.run_dir + "/trainers";
  node.disk_every_steps = static_cast<uint64_t>(config_.disk_every_steps);
  node.peer_every_steps = static_cast<uint64_t>(config_.peer_every_steps);
  node.peer_build_timeout_ms = config_.peer_build_timeout_ms;
  node.shared_tiers = shared_tiers_;
  node.checksum_threads = ChecksumPool::UsualThreads();
  node.copies_at_once = static_cast<uint32_t>(config_.remote_shards_at_once);
  node.sessions.per_user = static_cast<size_t>(config_.sessions_per_user);
  node.sessions.silent_per_user = static_cast<size_t>(config_.silent_per_user);
  node.scrub = {config_.scrub_bytes_per_s, config_.scrub_pause_ms};
  node_ = std::make_unique<Node>(node, *arena_, *volume_, *link_, *peers_, clock_);
}

Status AgentApplication::Open() {
  // Refuse a bad configuration before changing anything.
  HOLDFAST_RETURN_IF_ERROR(config_.CheckStart());
  HOLDFAST_ASSIGN_OR_RETURN(auto coordinators,
                            coord::LeaderChannel::Make(config_.coordinator, config_.tls,
                                                       coord::ServerRole::kCoordinatorOrRelay));
  HOLDFAST_ASSIGN_OR_RETURN(const auto group, FindFileGroup(config_.files_group));
  file_owners_ = std::make_unique<FileOwners>(owners_, group);
  HOLDFAST_RETURN_IF_ERROR(MakeRunDir(config_.run_dir));
  HOLDFAST_ASSIGN_OR_RETURN(lock_, LockRunDir(config_.run_dir, clock_));
  HOLDFAST_RETURN_IF_ERROR(OpenVolume());
  HOLDFAST_RETURN_IF_ERROR(OpenRemote());
  HOLDFAST_RETURN_IF_ERROR(OpenArena());
  const SeenLife seen = ReadSeenLife();
  HOLDFAST_RETURN_IF_ERROR(OpenLink(std::move(coordinators), seen));
  HOLDFAST_RETURN_IF_ERROR(OpenPeers());
  OpenNode(seen);
  return Status::Ok();
}

Status AgentApplication::Serve() {
  if (config_.workers_enabled) HOLDFAST_RETURN_IF_ERROR(OpenWorkers());
  node_->Adopt();
  WatchKeeper();
  HOLDFAST_ASSIGN_OR_RETURN(Endpoint listen, ParseEndpoint(config_.data_listen));
  data_ = std::make_unique<DataService>(*node_, *volume_, *arena_, config_.node);
  if (workers_ != nullptr) data_->ShowWorkers(*workers_);
  HOLDFAST_ASSIGN_OR_RETURN(guarded_data_, coord::GuardedService::Make(
                                               *data_, Agent::service_full_name(), config_.cluster,
                                               config_.access, clock_, &owners_));
  guarded_data_->callers().Refuse(revoked_);
  HOLDFAST_ASSIGN_OR_RETURN(data_server_,
                            coord::StartServer(*guarded_data_, listen, config_.tls, "data_listen",
                                               coord::kDataMessageBytesMax, kDataThreadsMax));
  data_address_ = listen.ToString();
  HOLDFAST_ASSIGN_OR_RETURN(
      UniqueFd trainers, ListenUnix(config_.run_dir + "/agent.sock", kTrainerSocketMode, clock_));
  HOLDFAST_RETURN_IF_ERROR(node_->Serve(std::move(trainers)));
  // Attach only after memory was verified, so that the first inventory contains its shards.
  if (!node_->AwaitAdopted(kAdoptWaitMs)) {
    Log(LogLevel::kWarn, "AdoptionSlow",
        {Kv("after_ms", kAdoptWaitMs), Kv("effect", "unverified slots are reported later")});
  }
  // Also without parity, other nodes restore from the shards of this one.
  const PeerTlsFiles tls{config_.tls.ca, config_.tls.cert, config_.tls.key};
  TcpPeerServerOptions options = config_.peers.ServerOptions(config_.cluster, config_.node, tls);
  options.revoked = &revoked_;
  options.is_busy = [this] { return InCollective(node_->ranks()); };
  HOLDFAST_ASSIGN_OR_RETURN(peer_server_,
                            TcpPeerServer::Start(options, node_->peer_source(), clock_));
  data_->ShowPeers(*peer_server_);
  if (config_.tls.configured()) {
    HOLDFAST_ASSIGN_OR_RETURN(auto coordinators,
                              coord::LeaderChannel::Make(config_.coordinator, config_.tls));
    certificates_ = std::make_unique<coord::CertificateKeeper>(
        config_.tls, config_.tls_renew, std::move(coordinators), revoked_, clock_);
    certificates_->Start();
  }
  link_->Start(*node_, data_address_);
  gpus_ = std::make_unique<GpuWatch>(config_.nvml_library);
  telemetry_ = std::make_unique<TelemetrySender>(*node_, *gpus_, *link_);
  if (config_.metrics.enabled()) HOLDFAST_RETURN_IF_ERROR(ServeMetrics());
  const ArenaUsage usage = arena_->usage();
  Log(LogLevel::kInfo, "AgentReady",
      {Kv("cluster", config_.cluster), Kv("node", config_.node), Kv("run_dir", config_.run_dir),
       Kv("data_address", data_address_), Kv("coordinator", config_.coordinator),
       Kv("arena_bytes", usage.budget_bytes), Kv("segments", usage.segments),
       Kv("disk_shards", volume_->recovery().shards.size()), Kv("pid", ::getpid())});
  return Status::Ok();
}

Status AgentApplication::ServeMetrics() {
  const AgentParts parts{*node_,
                         *arena_,
                         *volume_,
                         *telemetry_,
                         *gpus_,
                         peer_received_bytes_,
                         peer_server_.get(),
                         workers_.get(),
                         config_.arena_bytes_per_job,
                         config_.disk_bytes_per_job};
  HOLDFAST_ASSIGN_OR_RETURN(metrics_, coord::MetricsServer::Start(
                                          config_.metrics, {config_.tls.cert, config_.tls.key},
                                          [parts] { return CollectMetrics(parts); }, clock_));
  Log(LogLevel::kInfo, "MetricsListening",
      {Kv("address", metrics_->address()), Kv("https", metrics_->https()),
       Kv("textfile", config_.metrics.textfile)});
  return Status::Ok();
}

bool AgentApplication::Tick() {
  WatchKeeper();
  const uint64_t before = std::exchange(node_ticks_, link_->node_ticks());
  return node_ticks_ != before;
}

void AgentApplication::WatchKeeper() {
  Status status = arena_->EnsureKeeper();
  if (status.ok() == keeper_failed_) {
    keeper_failed_ = !status.ok();
    if (keeper_failed_) {
      Log(LogLevel::kError, "KeeperLost", {Kv("error", status.ToString())});
    } else {
      Log(LogLevel::kInfo, "KeeperReconnected");
    }
  }
  std::vector<std::string> warnings;
  if (!io_warning_.empty()) warnings.push_back(io_warning_);
  if (keeper_failed_) {
    warnings.push_back("the keeper is lost, so the memory of checkpoints ends with this agent: " +
                       status.message());
  }
  const std::string shared = SharedKeeperWarning(config_.run_dir, manager_);
  if (!shared.empty()) warnings.push_back(shared);
  if (warnings == host_warnings_) return;
  for (const std::string& warning : warnings) {
    Log(LogLevel::kWarn, "HostWarning", {Kv("warning", warning)});
  }
  host_warnings_ = warnings;
  link_->SetHostWarnings(std::move(warnings));
}

void AgentApplication::Depart(const std::function<bool()>& interrupted) {
  const Clock::TimePoint begun = clock_.Now();
  const auto jobs = node_->Depart(config_.shutdown_grace_s * 1000, interrupted);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(clock_.Now() - begun);
  const std::string disk_warning = node_->DiskWarning();
  for (const auto& [name, job] : jobs) {
    if (!job.goal) continue;
    if (!config_.remote_url.empty() && !job.copied()) {
      Log(LogLevel::kWarn, "NotCopied",
          {Kv("job", name), Kv("disk", NumberOf(job.disk)), Kv("remote", NumberOf(job.shared)),
           Kv("after_ms", ms.count()), Kv("effect", "the version on disk is not at tier remote")});
    }
    if (job.reached()) {
      Log(LogLevel::kInfo, "Departed",
          {Kv("job", name), Kv("disk", NumberOf(job.disk)), Kv("remote", NumberOf(job.shared)),
           Kv("after_ms", ms.count())});
    } else {
      Log(LogLevel::kWarn, "NotFlushed",
          {Kv("job", name), Kv("memory", NumberOf(job.goal)), Kv("disk", NumberOf(job.disk)),
           Kv("after_ms", ms.count()), Kv("attached", link_->attached()),
           Kv("why", disk_warning.empty() ? "not committed on disk in time" : disk_warning),
           Kv("effect", "no newer version is on the disks of all nodes")});
    }
  }
}

void AgentApplication::StopWithin(const std::function<bool()>& interrupted) {
  // The node may be about to lose power.
  if (node_ != nullptr) Depart(interrupted);
  if (interrupted()) {
    Log(LogLevel::kWarn, "AgentStoppedAtOnce", {Kv("why", "a second signal")});
    ::_exit(0);  // as after a crash: what was reported is durable, and the keeper has the memory
  }
  if (node_ != nullptr && !node_->StopSharedTiers(kSharedTiersStopMs)) {
    // A call that does not return keeps its thread, and with it this process. The agent can end at
    // any point, as after a crash: what was reported is durable, and the keeper has the memory.
    Log(LogLevel::kError, "SharedTierHangs", {Kv("effect", "the agent ends without waiting")});
    ::_exit(0);
  }
  // Each part is destroyed before the parts that it calls.
  metrics_.reset();
  if (certificates_ != nullptr) certificates_->Stop();
  if (link_ != nullptr) link_->Stop();
  telemetry_.reset();
  gpus_.reset();
  if (data_server_ != nullptr) {
    data_server_->Shutdown(std::chrono::system_clock::time_point());
    data_server_.reset();
  }
  data_.reset();
  workers_.reset();
  peer_server_.reset();
  node_.reset();
  peers_.reset();
  link_.reset();
  arena_.reset();
  remote_.reset();
  volume_.reset();
  lock_.Reset();
}

}  // namespace

Result<std::unique_ptr<Application>> Application::Start(const AgentConfig& config, Clock& clock,
                                                        const ServiceManager& manager,
                                                        const WorkerDefaults& workers) {
  auto application = std::make_unique<AgentApplication>(config, clock, manager, workers);
  HOLDFAST_RETURN_IF_ERROR(application->Open());
  HOLDFAST_RETURN_IF_ERROR(application->Serve());
  return application;
}

int RunAgent(const AgentConfig& config, Clock& clock) {
  // The memory of trainers is part of the agent's.
  const CoreSettings worker_cores = KeepMemoryOutOfCores();
  const ServiceManager manager = ServiceManager::FromEnvironment();
  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGTERM);
  ::sigaddset(&ends, SIGINT);
  // Blocked before any thread exists, so that only this thread takes these signals.
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  if (auto level = ParseLogLevel(config.log_level)) ConfigureLog("agent", *level);
  // Only this user may access the agent's files, except those opened explicitly, such as
  // agent.sock.
  const mode_t worker_umask = ::umask(077);
  auto application = Application::Start(config, clock, manager, {worker_umask, worker_cores});
  if (!application) {
    Log(LogLevel::kError, "AgentNotStarted", {Kv("error", application.error().ToString())});
    std::fprintf(stderr, "holdfast-agent: %s\n", application.error().message().c_str());
    return 1;
  }
  manager.Ready();
  const auto interval = std::chrono::nanoseconds(manager.watch_interval());
  const timespec tick{interval.count() / 1'000'000'000, interval.count() % 1'000'000'000};
  for (;;) {
    const int signal = ::sigtimedwait(&ends, nullptr, &tick);
    if (signal > 0) {
      Log(LogLevel::kInfo, "AgentStopping", {Kv("signal", signal)});
      break;
    }
    if ((*application)->Tick()) manager.Alive();
  }
  manager.Stopping();
  const timespec none{};
  bool again = false;
  (*application)->StopWithin([&] {
    again = again || ::sigtimedwait(&ends, nullptr, &none) > 0;
    return again;
  });
  Log(LogLevel::kInfo, "AgentStopped");
  return 0;
}

}  // namespace holdfast::agent
