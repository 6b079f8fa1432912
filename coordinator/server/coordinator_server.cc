#include "coordinator/server/coordinator_server.h"

#include <algorithm>
#include <filesystem>
#include <future>

#include "base/log.h"
#include "base/random.h"
#include "coordinator/etcd/url.h"
#include "coordinator/server/calls.h"
#include "coordinator/server/leader_hint.h"
#include "coordinator/server/metrics.h"
#include "coordinator/server/store_reader.h"
#include "coordinator/store/rocks_store.h"

namespace holdfast::coord {
namespace {
// All calls have ended by then: this only limits the wait for idle clients to disconnect.
constexpr int64_t kStopPatienceMs = 300;
constexpr std::chrono::seconds kPageInterval(2);

/// Makes data_dir, where drills keep records. Refuses one with an embedded store: that store has
/// the decisions of this cluster, and an etcd without them would begin a new life.
Status PrepareDataDir(const std::string& data_dir) {
  std::error_code error;
  if (std::filesystem::exists(data_dir + "/metadata/CURRENT", error)) {
    return FailedPreconditionError(
        data_dir +
        "/metadata has an embedded store, and store names an etcd, which does not have "
        "its records. Move the folder away to begin in etcd: 'holdfast adopt' then takes "
        "over the versions (docs/backup.md)");
  }
  std::filesystem::create_directories(data_dir, error);
  return error ? ErrnoStatus(error.value(), "data_dir: mkdir " + data_dir) : Status::Ok();
}

/// Waits until the applier has a state, which a coordinator that stands by never has. What was
/// answered to any caller before is in the store then.
Status AwaitState(Applier& applier) {
  std::promise<bool> loaded;
  const bool accepted = applier.Query(
      [&loaded](const State* state, Epoch /*epoch*/) { loaded.set_value(state != nullptr); });
  if (!accepted) return ResourceExhaustedError("too many reads wait already: try again");
  if (loaded.get_future().get()) return Status::Ok();
  return UnavailableError(StateUnknown(applier).error_message());
}

Result<std::unique_ptr<EtcdSession>> OpenEtcdSession(const CoordinatorConfig& config) {
  HOLDFAST_ASSIGN_OR_RETURN(const EtcdUrl url, ParseEtcdUrl(config.store));
  HOLDFAST_ASSIGN_OR_RETURN(auto client, EtcdClient::Make(url.members, config.etcd_tls));
  EtcdSessionOptions options;
  options.address = config.advertise.empty() ? config.listen : config.advertise;
  options.lease = std::chrono::seconds(config.etcd_lease_s);
  options.store.prefix = url.PrefixOf(config.cluster);
  options.store.request_bytes_max = config.etcd_request_bytes_max;
  options.store.patience = 2 * options.lease;
  return EtcdSession::Start(std::move(client), std::move(options));
}

StateOptions StateOptionsOf(const CoordinatorConfig& config) {
  StateOptions options;
  options.node_lease = std::chrono::milliseconds(config.node_lease_ms);
  options.detach_grace =
      std::min<std::chrono::nanoseconds>(options.detach_grace, options.node_lease / 4);
  options.probe_timeout =
      std::min<std::chrono::nanoseconds>(options.probe_timeout, 3 * options.node_lease / 4);
  options.keep_last = static_cast<uint32_t>(config.keep_last);
  options.keep_every = static_cast<uint64_t>(config.keep_every);
  CopyOptions& remote = options.copies[Tier::kRemote];
  remote.every_steps = static_cast<uint64_t>(config.remote_every);
  remote.interval = std::chrono::seconds(config.remote_interval_s);
  remote.retention = {static_cast<uint64_t>(config.remote_keep_last),
                      static_cast<uint64_t>(config.remote_keep_every)};
  options.release_after = std::chrono::seconds(config.release_after_s);
  options.release_dead_after = std::chrono::seconds(config.release_dead_after_s);
  options.forget_after = std::chrono::seconds(config.forget_after_s);
  options.peers.enabled = config.peers_enabled;
  options.peers.groups.group_nodes = static_cast<uint32_t>(config.peers_group_nodes);
  options.peers.groups.parity = static_cast<uint32_t>(config.peers_parity);
  options.peers.domain_label = config.peers_domain_label;
  options.rehome_after = std::chrono::seconds(config.peers_rehome_after_s);
  options.rebuild = config.rebuild;
  return options;
}

Result<SupervisorOptions> SupervisorOptionsOf(const CoordinatorConfig& config,
                                              Clock::Duration node_lease) {
  SupervisorOptions runs;
  runs.node_lease = node_lease;
  runs.has_restart_command = !config.restart_command.empty();
  runs.port_seed = static_cast<uint32_t>(RandomSeed());
  runs.jobs_per_user = static_cast<uint32_t>(config.jobs_per_user);
  runs.command_attempts = static_cast<uint32_t>(config.restart_attempts);
  runs.command_cooldown = std::chrono::milliseconds(config.restart_cooldown_ms);
  HOLDFAST_ASSIGN_OR_RETURN(runs.detect_action, ParseDetectAction(config.detect_action));
  runs.restart_stuck_after = std::chrono::milliseconds(config.detect_restart_stuck_after_ms);
  runs.restart_absent_after = std::chrono::milliseconds(config.detect_restart_absent_after_ms);
  return runs;
}

detect::DetectorOptions DetectorOptionsOf(const CoordinatorConfig& config) {
  detect::DetectorOptions detector;
  detector.hang_after = std::chrono::milliseconds(config.detect_alert_after_ms);
  // A configured patience that is shorter than the detector's takes precedence.
  const auto no_longer_than = [](Clock::Duration& patience, int64_t configured_ms) {
    patience = std::min<Clock::Duration>(patience, std::chrono::milliseconds(configured_ms));
  };
  no_longer_than(detector.stuck_after, config.detect_restart_stuck_after_ms);
  no_longer_than(detector.absent_after, config.detect_restart_absent_after_ms);
  no_longer_than(detector.idle_after, config.detect_restart_absent_after_ms);
  no_longer_than(detector.silent_after, config.detect_restart_absent_after_ms);
  return detector;
}
}  // namespace

Result<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(const CoordinatorConfig& config,
                                                                    Applier::StoreOpener opener,
                                                                    Clock& clock) {
  HOLDFAST_RETURN_IF_ERROR(CheckConfig(config));  // before the store is touched
  return Start(config, std::move(opener), nullptr, nullptr, clock);
}

Result<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    const CoordinatorConfig& config, Applier::StoreOpener opener,
    std::unique_ptr<EtcdSession> session, Backups::Reader reader, Clock& clock) {
  std::unique_ptr<CoordinatorServer> server(new CoordinatorServer());
  server->session_ = std::move(session);
  HOLDFAST_ASSIGN_OR_RETURN(server->endpoint_, ParseEndpoint(config.listen));
  HOLDFAST_RETURN_IF_ERROR(server->StartApplier(config, std::move(opener), clock));
  HOLDFAST_RETURN_IF_ERROR(server->StartServices(config, std::move(reader), clock));
  HOLDFAST_RETURN_IF_ERROR(server->StartJoin(config, clock));
  HOLDFAST_RETURN_IF_ERROR(server->StartMetrics(config, clock));
  return server;
}

Status CoordinatorServer::StartApplier(const CoordinatorConfig& config, Applier::StoreOpener opener,
                                       Clock& clock) {
  const StateOptions options = StateOptionsOf(config);
  HOLDFAST_ASSIGN_OR_RETURN(const SupervisorOptions runs,
                            SupervisorOptionsOf(config, options.node_lease));
  restart_command_ = std::make_unique<RestartCommand>(
      config.restart_command, std::chrono::milliseconds(config.restart_timeout_ms), clock);
  const auto restart = [command = restart_command_.get()](const IncidentRecord& incident) {
    command->Run(incident);
  };
  const auto startup =
      session_ == nullptr ? Applier::Startup::kNeedsStore : Applier::Startup::kMayStandBy;
  HOLDFAST_ASSIGN_OR_RETURN(applier_, Applier::Start(config.cluster, options, runs,
                                                     std::move(opener), clock, restart, startup));
  restart_command_->Start([applier = applier_.get()](uint64_t incident, bool ok, std::string how) {
    applier->Submit(RunEvent(RestartCommandEnded{incident, ok, std::move(how)}));
  });
  watcher_ = std::make_unique<Watcher>(
      [applier = applier_.get()](FaultDetected fault) {
        applier->Submit(RunEvent(std::move(fault)));
      },
      applier_->attendance(), DetectorOptionsOf(config), clock);
  return Status::Ok();
}

Status CoordinatorServer::StartServices(const CoordinatorConfig& config, Backups::Reader reader,
                                        Clock& clock) {
  service_ = std::make_unique<CoordinatorService>(config.cluster, *applier_, *watcher_, clock);
  HOLDFAST_RETURN_IF_ERROR(StartPage(config, clock));
  service_->ReportPage(page_url());
  InterceptorFactories interceptors;
  if (session_ != nullptr) interceptors.push_back(MakeLeaderHints(*session_));
  HOLDFAST_ASSIGN_OR_RETURN(
      guarded_,
      GuardedService::Make(*service_, coordinator::Coordinator::service_full_name(), config.cluster,
                           config.access, clock, &applier_->job_owners()));
  HOLDFAST_ASSIGN_OR_RETURN(audit_log_, AuditLog::Open({config.data_dir + "/audit.log"}, clock));
  auditor_ = std::make_unique<Auditor>(*audit_log_, guarded_->callers());
  service_->RecordIn(*auditor_);
  if (reader != nullptr) {
    reader = [raw = applier_.get(), reader]() -> Result<std::vector<KeyValue>> {
      HOLDFAST_RETURN_IF_ERROR(AwaitState(*raw));
      return reader();
    };
  }
  backups_ = std::make_unique<Backups>(std::move(reader), clock);
  service_->BackUpThrough(*backups_);
  service_->Identify(guarded_->callers(), config.run_as_users);
  HOLDFAST_RETURN_IF_ERROR(StartCertificates(config, clock));
  HOLDFAST_RETURN_IF_ERROR(StartRelays(config, clock));
  HOLDFAST_ASSIGN_OR_RETURN(
      server_,
      StartServer({guarded_.get(), guarded_certificates_.get(), guarded_relays_.get()}, endpoint_,
                  config.tls, "listen", kControlMessageBytesMax, 0, std::move(interceptors)));
  return Status::Ok();
}

Status CoordinatorServer::StartRelays(const CoordinatorConfig& config, Clock& clock) {
  relays_ = std::make_unique<RelayService>(config.cluster, *applier_, service_->agents(), clock);
  HOLDFAST_ASSIGN_OR_RETURN(guarded_relays_,
                            GuardedService::Make(*relays_, coordinator::Relays::service_full_name(),
                                                 config.cluster, config.access, clock));
  guarded_relays_->callers().Refuse(feed_->revoked());
  relays_->Identify(guarded_relays_->callers());
  service_->TakeFrom(*relays_);
  return Status::Ok();
}

Status CoordinatorServer::StartCertificates(const CoordinatorConfig& config, Clock& clock) {
  HOLDFAST_ASSIGN_OR_RETURN(issuer_, Issuer::Open({config.cluster, config.tls, config.join_ca_key,
                                                   config.join_certificate_s},
                                                  clock));
  feed_ = std::make_unique<TrustFeed>(*applier_, *issuer_, clock);
  certificates_ = std::make_unique<CertificateService>(*applier_, *issuer_, *feed_, clock);
  certificates_->Begin(*auditor_, config.join_listen);
  HOLDFAST_ASSIGN_OR_RETURN(
      guarded_certificates_,
      GuardedService::Make(*certificates_, coordinator::Certificates::service_full_name(),
                           config.cluster, config.access, clock));
  guarded_->callers().Refuse(feed_->revoked());
  guarded_certificates_->callers().Refuse(feed_->revoked());
  return Status::Ok();
}

Status CoordinatorServer::StartJoin(const CoordinatorConfig& config, Clock& clock) {
  if (config.join_listen.empty()) return Status::Ok();
  HOLDFAST_ASSIGN_OR_RETURN(Endpoint listen, ParseEndpoint(config.join_listen));
  std::string coordinators = config.join_coordinators;
  if (coordinators.empty()) coordinators = config.advertise;
  if (coordinators.empty()) coordinators = endpoint_.ToString();
  enrollment_ = std::make_unique<EnrollmentService>(config.cluster, std::move(coordinators),
                                                    *applier_, *issuer_, clock);
  HOLDFAST_ASSIGN_OR_RETURN(join_server_, StartJoinServer(*enrollment_, listen, config.tls));
  Log(LogLevel::kInfo, "JoinListening",
      {Kv("address", listen.ToString()), Kv("authority", issuer_->issuer_hash())});
  return Status::Ok();
}

Status CoordinatorServer::StartMetrics(const CoordinatorConfig& config, Clock& clock) {
  if (!config.metrics.enabled()) return Status::Ok();
  HOLDFAST_ASSIGN_OR_RETURN(
      metrics_, MetricsServer::Start(
                    config.metrics, {config.tls.cert, config.tls.key},
                    [this, &clock] { return CollectMetrics(*applier_, *watcher_, clock); }, clock));
  Log(LogLevel::kInfo, "MetricsListening",
      {Kv("address", metrics_->address()), Kv("https", metrics_->https()),
       Kv("textfile", config.metrics.textfile)});
  return Status::Ok();
}

Status CoordinatorServer::StartPage(const CoordinatorConfig& config, Clock& clock) {
  if (!config.ui.enabled()) return Status::Ok();
  page_source_ = std::make_unique<PageSource>(config.cluster, *applier_, *watcher_, clock);
  HOLDFAST_ASSIGN_OR_RETURN(page_, ui::UiServer::Start(config.ui, {config.tls.cert, config.tls.key},
                                                       *page_source_, clock, kPageInterval));
  Log(LogLevel::kInfo, "PageListening", {Kv("url", page_url())});
  return Status::Ok();
}

Result<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(const CoordinatorConfig& config,
                                                                    Clock& clock) {
  HOLDFAST_RETURN_IF_ERROR(CheckConfig(config));
  const auto reader = [config] { return ReadStore(config); };
  if (config.store != kEmbeddedStore) {
    HOLDFAST_RETURN_IF_ERROR(PrepareDataDir(config.data_dir));
    HOLDFAST_ASSIGN_OR_RETURN(auto session, OpenEtcdSession(config));
    auto etcd_opener = [raw = session.get()] { return raw->OpenStore(); };
    return Start(config, etcd_opener, std::move(session), reader, clock);
  }
  auto opener = [dir = config.data_dir + "/metadata"]() -> Result<std::unique_ptr<MetaStore>> {
    HOLDFAST_ASSIGN_OR_RETURN(auto store, RocksStore::Open(dir));
    return std::unique_ptr<MetaStore>(std::move(store));
  };
  return Start(config, opener, nullptr, reader, clock);
}

void CoordinatorServer::AfterNextBatch(std::function<void()> then) {
  applier_->AfterNextBatch(std::move(then));
}

CoordinatorServer::~CoordinatorServer() {
  // These use the objects that stop below.
  page_.reset();
  metrics_.reset();
  if (watcher_) watcher_->Stop();
  if (feed_) feed_->Stop();
  // Stop the applier before the gRPC server: it ends the waiting calls, so the shutdown is short.
  if (applier_) applier_->Stop();
  if (relays_) relays_->Stop();
  if (backups_) backups_->Stop();
  if (restart_command_) restart_command_->Stop();
  // Before the server waits for its clients, so that another coordinator leads at once. The applier
  // has stopped, so nothing is directed any more.
  if (session_) session_->Stop();
  const auto stop = [](auto& server) {
    if (server == nullptr) return;
    server->Shutdown(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                  gpr_time_from_millis(kStopPatienceMs, GPR_TIMESPAN)));
    server->Wait();
  };
  stop(join_server_);
  stop(server_);
}

}  // namespace holdfast::coord
