#include "coordinator/restart/supervisor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace holdfast::coord {
namespace {
constexpr uint32_t kPortFirst = 20'000;  // below the kernel's ephemeral ports
constexpr uint32_t kPorts = 10'000;

/// Returns a port for a launch: an FNV-1a hash, so that successive launches use different ports.
uint32_t PortOf(const std::string& job, const std::string& run_id, uint32_t seed) {
  uint32_t hash = 2166136261U ^ seed;
  for (const std::string* text : {&job, &run_id}) {
    for (const char c : *text) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619U;
  }
  return kPortFirst + hash % kPorts;
}

/// Returns whether `lineage` belongs to the run's current launch. A rollback by the trainers opens
/// an incarnation whose run ID is the launch's with a suffix "+…".
bool IsStartOf(const RunRecord& run, const LineageRecord& lineage) {
  const std::string name = run.run_id();
  return lineage.run_id == name || lineage.run_id.starts_with(name + "+");
}

bool WasRefused(const NodeReported& event, std::span<const Effect> effects) {
  return std::any_of(effects.begin(), effects.end(), [&event](const Effect& effect) {
    const auto* reply = std::get_if<Reply>(&effect);
    return reply != nullptr && reply->request == event.request && !reply->outcome.ok();
  });
}
}  // namespace

Supervisor::Supervisor(const SupervisorOptions& options, const Records& records, Instant at)
    : options_(options), at_(at) {
  for (const RunRecord& record : records.runs) {
    Run& run = runs_[record.spec.job];
    run.record = record;
    run.launched_at = at.now;
    run.not_before = at.now;
    // A stop is not stored: the operator has to request it again.
    if (record.phase == RunPhase::kStopping) run.record.phase = RunPhase::kRunning;
    for (const std::string& name : record.nodes) {
      Node& node = nodes_[name];
      node.state_since = at.now + options.node_lease;
      node.last_contact = node.state_since;
    }
  }
  for (const LineageRecord& lineage : records.lineages) {
    Progress& progress = progress_[lineage.job];
    progress.incarnation = std::max(progress.incarnation, lineage.incarnation);
    Run* run = Find(lineage.job);
    if (run != nullptr && IsStartOf(run->record, lineage)) {
      run->incarnation = lineage.incarnation;
    }
  }
  for (const VersionRecord& version : records.versions) {
    Progress& progress = progress_[version.job];
    if (version.phase != Phase::kCommitted) continue;
    progress.sealed = std::max(progress.sealed, version.version);
    if (version.tiers & TierBit(Tier::kMemory)) {
      progress.memory = std::max(progress.memory, version.version);
    }
    if (version.tiers & TierBit(Tier::kDisk)) {
      progress.disk = std::max(progress.disk, version.version);
    }
    Run* run = Find(version.job);
    if (run == nullptr || run->incarnation != version.version.incarnation) continue;
    run->committed = run->record.saved = true;
    run->record.newest_step = std::max(run->record.newest_step, version.version.step.value);
  }
  for (const IncidentRecord& incident : records.incidents) {
    incidents_[incident.id] = incident;
    next_incident_ = std::max(next_incident_, incident.id + 1);
  }
  for (const QuarantineRecord& record : records.quarantine) quarantine_[record.node] = record;
  for (const SuspectRecord& record : records.suspects) RestoreSuspect(record);
  LoadRestartCommands(records);
}

std::vector<Effect> Supervisor::Apply(const RunEvent& event, Instant at) {
  effects_.clear();
  at_ = at;
  std::visit([this](const auto& e) { On(e); }, event);
  Advance();
  return std::move(effects_);
}

std::vector<Effect> Supervisor::Observe(const Event& event, std::span<const Effect> effects,
                                        Instant at) {
  effects_.clear();
  at_ = at;
  advance_needed_ = std::holds_alternative<Tick>(event);
  if (const auto* tick = std::get_if<Tick>(&event); tick != nullptr && tick->resumed) {
    grace_until_ = at.now + options_.node_lease;
  }
  if (const auto* attached = std::get_if<NodeAttached>(&event)) {
    const bool refused = std::any_of(effects.begin(), effects.end(), [&](const Effect& effect) {
      const auto* close = std::get_if<CloseAttach>(&effect);
      return close != nullptr && close->attach == attached->attach;
    });
    if (!refused) On(*attached);
  } else if (const auto* reported = std::get_if<NodeReported>(&event)) {
    if (!WasRefused(*reported, effects)) On(*reported);
  } else if (const auto* detached = std::get_if<NodeDetached>(&event)) {
    auto node = nodes_.find(detached->node);
    if (node != nodes_.end() && node->second.attach == detached->attach) {
      node->second.stream_ended = advance_needed_ = true;
    }
  }
  for (const Effect& effect : effects) OnEffect(effect);
  if (advance_needed_) Advance();
  return std::move(effects_);
}

Supervisor::Run* Supervisor::Find(const std::string& job) {
  auto found = runs_.find(job);
  return found == runs_.end() ? nullptr : &found->second;
}

void Supervisor::Answer(RequestId request, Status outcome) {
  if (request == 0) return;
  Reply reply;
  reply.request = request;
  reply.outcome = std::move(outcome);
  effects_.emplace_back(std::move(reply));
}

void Supervisor::Store(const Run& run) { effects_.emplace_back(PutRun{run.record}); }

// ---- requests of operators ----

void Supervisor::On(const RunRequested& event) {
  Run* before = Find(event.spec.job);
  if (before != nullptr && !HasEnded(before->record.phase)) {
    return Answer(
        event.request,
        AlreadyExistsError(fmt::format(
            "job '{}' is {}; see `holdfast run --follow --job {}`, or end it with "
            "`holdfast stop {}`",
            event.spec.job, ToString(before->record.phase), event.spec.job, event.spec.job)));
  }
  Run run;
  run.record.spec = event.spec;
  run.record.serial = before == nullptr ? 1 : before->record.serial + 1;
  run.record.started_wall_nanos = at_.wall_nanos;
  run.not_before = at_.now;
  // Prefer the nodes of the previous run, which have the job's shards.
  if (before != nullptr && before->record.nodes.size() == event.spec.nodes) {
    run.record.nodes = before->record.nodes;
  }
  runs_[event.spec.job] = std::move(run);
  Store(runs_[event.spec.job]);
  Answer(event.request, Status::Ok());
}

void Supervisor::On(const StopRequested& event) {
  Run* run = Find(event.job);
  if (run == nullptr) {
    return Answer(event.request, NotFoundError(fmt::format("no job '{}' was started with "
                                                           "`holdfast run`",
                                                           event.job)));
  }
  if (HasEnded(run->record.phase)) {
    return Answer(event.request,
                  FailedPreconditionError(fmt::format("job '{}' has {} already", event.job,
                                                      ToString(run->record.phase))));
  }
  const Progress& progress = progress_[event.job];
  run->stop_target = progress.memory;
  run->stop_at = at_.now + std::chrono::milliseconds(event.deadline_ms);
  if (run->record.phase == RunPhase::kWaiting) {
    End(*run, RunPhase::kStopped, "stopped while waiting for nodes");
  } else {
    run->record.phase = RunPhase::kStopping;
    run->record.why =
        fmt::format("until version {} or a newer one is on disk", ToString(run->stop_target));
    Store(*run);
  }
  Answer(event.request, Status::Ok());
}

void Supervisor::On(const QuarantineRequested& event) {
  if (nodes_.count(event.node) == 0 && quarantine_.count(event.node) == 0) {
    return Answer(event.request,
                  NotFoundError(fmt::format("no node '{}' has ever attached", event.node)));
  }
  if (event.set) {
    QuarantineRecord record{event.node, event.why, at_.wall_nanos};
    quarantine_[event.node] = record;
    effects_.emplace_back(PutQuarantine{std::move(record)});
  } else if (quarantine_.erase(event.node) != 0) {
    effects_.emplace_back(EraseQuarantine{event.node});
    for (auto& [job, run] : runs_) run.strikes.erase(event.node);
  }
  if (!event.set) ClearSuspect(event.node);
  Answer(event.request, Status::Ok());
}

// ---- events of nodes ----

void Supervisor::On(const NodeAttached& event) {
  advance_needed_ = true;
  Node& node = nodes_[event.node];
  node.attached = true;
  node.lost_together = false;
  node.attach = event.attach;
  if (node.agent_start != event.agent_start) node.newest_gpu_error = 0;
  node.agent_start = event.agent_start;
  node.worker_address = event.worker_address;
  node.state_since = at_.now;
  node.last_contact = at_.now;
  node.stream_ended = false;
  node.workers = event.workers;
  if (node.worker_address.empty()) return;
  std::set<std::string> jobs;
  for (const WorkerState& worker : node.workers) jobs.insert(worker.job);
  if (const Run* run = PlacedOn(event.node)) jobs.insert(run->record.spec.job);
  for (const std::string& job : jobs) SendWorkers(event.node, job);
}

void Supervisor::On(const NodeReported& event) {
  auto found = nodes_.find(event.node);
  if (found == nodes_.end() || found->second.agent_start != event.agent_start) return;
  found->second.last_contact = at_.now;
  advance_needed_ = advance_needed_ || found->second.workers != event.workers;
  found->second.workers = event.workers;
  for (const StoredReplica& report : event.replicas) {
    auto found_job = progress_.find(report.identity.job);
    if (found_job == progress_.end()) continue;  // the job never started
    Progress& progress = found_job->second;
    if (IsParity(report.identity.rank) || report.identity.version <= progress.sealed ||
        report.identity.version.incarnation > progress.incarnation) {
      continue;
    }
    progress.sealed = report.identity.version;
    progress.sealed_at = at_.now;
  }
}

void Supervisor::OnEffect(const Effect& effect) {
  if (const auto* lost = std::get_if<NodeDeclaredLost>(&effect)) {
    advance_needed_ = true;
    Node& node = nodes_[lost->node];
    node.attached = false;
    node.silent = lost->silent;
    node.state_since = at_.now;
    MarkLostTogether(node);
    node.workers.clear();
  } else if (const auto* erase = std::get_if<EraseRun>(&effect)) {
    runs_.erase(erase->job);
    progress_.erase(erase->job);
  } else if (const auto* lineage = std::get_if<PutLineage>(&effect)) {
    OnLineage(lineage->record, lineage->change);
  } else if (const auto* put = std::get_if<PutVersion>(&effect)) {
    if (put->committed_tier_bit != 0) OnCommit(*put);
  } else if (const auto* finding = std::get_if<Finding>(&effect)) {
    // A finding with a kind is an incident of that kind. Of the others only damage becomes one.
    if (!finding->kind.empty()) {
      Failure failure;
      failure.kind = finding->kind;
      failure.what = finding->what.message();
      failure.ranks = finding->ranks;
      failure.healthy_until = at_.now;
      return Note(finding->job, failure, "none: needs an operator");
    }
    if (finding->what.code() != ErrorCode::kDataLoss) return;
    Failure damage;
    damage.kind = "damage";
    damage.what = finding->what.message();
    if (!finding->node.empty()) damage.nodes = {finding->node};
    damage.healthy_until = at_.now;
    Note(finding->job, damage, "the damaged replica no longer counts; its repair is scheduled");
  }
}

void Supervisor::OnLineage(const LineageRecord& lineage, LineageChange change) {
  if (change == LineageChange::kOpened) EndRestartCommand(lineage.job, lineage.incarnation);
  Progress& progress = progress_[lineage.job];
  progress.incarnation = std::max(progress.incarnation, lineage.incarnation);
  Run* run = Find(lineage.job);
  if (run == nullptr || !IsStartOf(run->record, lineage)) return;
  if (change == LineageChange::kOpened) {
    run->incarnation = lineage.incarnation;
  } else if (change == LineageChange::kDecided) {
    const VersionId sealed = progress_[lineage.job].sealed;
    for (auto& [id, incident] : incidents_) {
      if (incident.job != lineage.job || incident.state != IncidentState::kOpen) continue;
      incident.restored = lineage.decision == Decision::kVersion ? lineage.restored : VersionId{};
      const uint64_t from = incident.restored.step.value;
      incident.lost_steps =
          static_cast<int64_t>(sealed.step.value - std::min(from, sealed.step.value));
    }
    MarkIncidents(lineage.job, &IncidentRecord::restore_ms);
  }
}

void Supervisor::OnCommit(const PutVersion& put) {
  const VersionRecord& version = put.record;
  Progress& progress = progress_[version.job];
  VersionId& newest =
      put.committed_tier_bit == TierBit(Tier::kDisk) ? progress.disk : progress.memory;
  newest = std::max(newest, version.version);
  auto restart = external_restarts_.find(version.job);
  if (restart != external_restarts_.end() &&
      version.version.incarnation > restart->second.incarnation) {
    MarkIncidents(version.job, &IncidentRecord::first_step_ms);
    CloseIncidents(version.job, IncidentState::kRecovered);
    external_restarts_.erase(restart);
  }
  Run* run = Find(version.job);
  if (run == nullptr || run->incarnation != version.version.incarnation ||
      put.committed_tier_bit != TierBit(Tier::kMemory)) {
    return;
  }
  RefillBudget(*run, version.version.step);
  if (run->committed) return;
  run->committed = true;
  run->own_exits.clear();
  if (run->record.fruitless != 0 || !run->record.saved) {
    run->record.fruitless = 0;
    run->record.saved = true;
    Store(*run);
  }
  MarkIncidents(version.job, &IncidentRecord::first_step_ms);
  CloseIncidents(version.job, IncidentState::kRecovered);
}

/// Counts a newly committed step towards a refill of the restart budget. Steps that are trained
/// again after a restart do not count.
void Supervisor::RefillBudget(Run& run, Step committed) {
  RunRecord& record = run.record;
  if (committed.value <= record.newest_step) return;
  record.newest_step = committed.value;
  if (record.budget_used == 0 || record.spec.refill_versions == 0) return;
  if (++record.budget_versions < record.spec.refill_versions) return;
  record.budget_used = record.budget_versions = 0;
  Store(run);
}

// ---- transitions ----

void Supervisor::Advance() {
  for (auto& [job, run] : runs_) Advance(run);
  AdvanceRestartCommands();
}

void Supervisor::Advance(Run& run) {
  if (HasEnded(run.record.phase)) return;
  if (run.record.phase != RunPhase::kWaiting) {
    CheckWorkers(run);
    if (!HasEnded(run.record.phase)) FindFailure(run);
  }
  if (!OldWorkersRun(run)) MarkIncidents(run.record.spec.job, &IncidentRecord::stop_ms);
  if (run.record.phase == RunPhase::kStopping) {
    const Progress& progress = progress_[run.record.spec.job];
    if (progress.disk >= run.stop_target) {
      End(run, RunPhase::kStopped,
          fmt::format("stopped; version {} is on disk", ToString(progress.disk)));
    } else if (at_.now >= run.stop_at) {
      End(run, RunPhase::kStopped,
          fmt::format("stopped; the newest version on disk is {}, in memory {}",
                      ToString(progress.disk), ToString(progress.memory)));
    }
  }
  if (run.record.phase == RunPhase::kWaiting && at_.now >= run.not_before) TryLaunch(run);
}

/// Records workers that ended, the start of all workers, and the end of a successful run.
void Supervisor::CheckWorkers(Run& run) {
  const std::string run_id = run.record.run_id();
  const uint32_t on_node = run.record.spec.ranks_per_node;
  std::set<Rank> present;
  for (size_t i = 0; i < run.record.nodes.size(); ++i) {
    for (const WorkerState& worker : nodes_[run.record.nodes[i]].workers) {
      if (worker.job != run.record.spec.job || worker.run_id != run_id) continue;
      if (worker.rank.value / on_node != i) continue;  // not placed on this node
      present.insert(worker.rank);
      if (worker.phase != WorkerPhase::kRunning) run.ended.emplace(worker.rank, worker);
    }
  }
  const uint32_t world = run.record.spec.world();
  if (run.record.phase == RunPhase::kStarting && present.size() == world) {
    run.record.phase = RunPhase::kRunning;
    run.record.why.clear();
    Store(run);
  }
  const auto fine = [](const auto& entry) {
    return entry.second.phase == WorkerPhase::kEnded && entry.second.exit_code == 0 &&
           entry.second.signal == 0;
  };
  if (run.ended.size() == world && std::all_of(run.ended.begin(), run.ended.end(), fine)) {
    End(run, RunPhase::kFinished, "every worker ended with exit code 0");
  }
}

const Supervisor::Run* Supervisor::PlacedOn(const std::string& node) const {
  for (const auto& [job, run] : runs_) {
    if (HasEnded(run.record.phase) || run.record.phase == RunPhase::kWaiting) continue;
    const auto& nodes = run.record.nodes;
    if (std::find(nodes.begin(), nodes.end(), node) != nodes.end()) return &run;
  }
  return nullptr;
}

/// Returns the nodes that may get workers of `run` (nullptr: nodes without any run).
std::set<std::string> Supervisor::Usable(const Run* run) const {
  std::set<std::string> usable;
  for (const auto& [name, node] : nodes_) {
    if (!node.attached || node.worker_address.empty() || quarantine_.count(name) != 0) continue;
    const Run* other = PlacedOn(name);
    if (other != nullptr && other != run) continue;
    usable.insert(name);
  }
  return usable;
}

void Supervisor::TryLaunch(Run& run) {
  PlacementRequest request;
  request.nodes = run.record.spec.nodes;
  request.before = run.record.nodes;
  request.usable = Usable(&run);
  request.avoid = NodesToAvoid(run);
  // The first launch also waits for the spares, since nothing waits for them later.
  if (run.record.launches == 0) request.nodes += run.record.spec.spares;
  Placement placement = Place(request);
  if (!placement.nodes.empty()) {
    if (run.record.launches == 0) {
      request.nodes = run.record.spec.nodes;
      placement = Place(request);
    }
    return Launch(run, placement);
  }
  std::string why = fmt::format("waits for {} more node{} that can launch workers",
                                placement.lacking, placement.lacking == 1 ? "" : "s");
  if (why == run.record.why) return;
  run.record.why = std::move(why);
  Store(run);
}

void Supervisor::Launch(Run& run, const Placement& placement) {
  const std::vector<std::string> before = run.record.nodes;
  run.record.nodes = placement.nodes;
  ++run.record.launches;
  run.record.life = options_.life;
  ++run.record.fruitless;
  run.record.phase = RunPhase::kStarting;
  run.record.why.clear();
  run.incarnation = Incarnation{0};
  run.committed = false;
  run.launched_at = at_.now;
  run.first_failure_at.reset();
  run.ended.clear();
  run.avoid.clear();
  Store(run);
  for (auto& [id, incident] : incidents_) {
    if (incident.job != run.record.spec.job || incident.state != IncidentState::kOpen) continue;
    if (incident.decide_ms >= 0) continue;
    incident.plan = fmt::format("all ranks start again as {}", run.record.run_id());
    if (!placement.in.empty()) {
      incident.plan +=
          fmt::format("; {} for {}", fmt::join(placement.in, ", "), fmt::join(placement.out, ", "));
    }
  }
  MarkIncidents(run.record.spec.job, &IncidentRecord::decide_ms);
  for (const std::string& node : before) {
    const auto& now = run.record.nodes;
    if (std::find(now.begin(), now.end(), node) == now.end()) {
      SendWorkers(node, run.record.spec.job);
    }
  }
  SendWorkersToNodes(run);
}

void Supervisor::End(Run& run, RunPhase phase, std::string why) {
  run.record.phase = phase;
  run.record.why = std::move(why);
  Store(run);
  SendWorkersToNodes(run);
  CloseIncidents(run.record.spec.job, phase == RunPhase::kFinished ? IncidentState::kRecovered
                                                                   : IncidentState::kGivenUp);
}

// ---- directives to nodes ----

SetWorkers Supervisor::WorkersFor(const Run& run, const std::string& node) const {
  const RunRecord& record = run.record;
  SetWorkers directive;
  directive.job = record.spec.job;
  directive.grace_ms = record.spec.grace_ms;
  const auto place = std::find(record.nodes.begin(), record.nodes.end(), node);
  const bool due = record.phase == RunPhase::kStarting || record.phase == RunPhase::kRunning ||
                   record.phase == RunPhase::kStopping;
  if (!due || place == record.nodes.end()) return directive;
  directive.run_id = record.run_id();
  directive.node_rank = static_cast<uint32_t>(place - record.nodes.begin());
  directive.nodes = record.spec.nodes;
  directive.ranks = record.spec.ranks_per_node;
  directive.first_rank = Rank{directive.node_rank * directive.ranks};
  directive.world = record.spec.world();
  const auto master = nodes_.find(record.nodes.front());
  if (master != nodes_.end()) directive.master_address = master->second.worker_address;
  directive.master_port = PortOf(directive.job, directive.run_id, options_.port_seed);
  directive.restarts = record.restarts();
  directive.restarts_max = record.spec.restarts_max;
  directive.command = record.spec.command;
  directive.environment = record.spec.environment;
  directive.directory = record.spec.directory;
  return directive;
}

void Supervisor::SendWorkers(const std::string& name, const std::string& job) {
  const Node& node = nodes_[name];
  if (!node.attached || node.worker_address.empty()) return;
  const Run* run = Find(job);
  if (run != nullptr) return SendDirective(node.attach, WorkersFor(*run, name));
  SetWorkers none;
  none.job = job;
  SendDirective(node.attach, std::move(none));
}

void Supervisor::SendDirective(AttachId attach, Directive directive) {
  effects_.emplace_back(Send{attach, std::move(directive)});
}

void Supervisor::SendWorkersToNodes(const Run& run) {
  for (const std::string& node : run.record.nodes) SendWorkers(node, run.record.spec.job);
}

}  // namespace holdfast::coord
