#include "faults/drill/runner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include "cli/cluster/agent_client.h"
#include "cli/core/interrupt.h"
#include "cli/core/parallel.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"
#include "cli/shards/shard_check.h"

namespace holdfast::faults {
using cli::AgentClient;
using cli::CheckOnline;
using cli::DeferInterrupt;
using cli::Interrupt;
using cli::Printable;
using cli::ShardCheck;
using cli::Verdict;
using coord::AnyNumber;
using coord::AnyVersion;
using coord::FromProto;
namespace {
constexpr int64_t kPollMs = 20;
// The longest wait for nodes to be back after the fault.
constexpr int64_t kEndTimeoutMs = 60'000;
// How long after its end a fault may still be detected.
constexpr int64_t kNotDetectedMs = 5000;
constexpr int kVersionTries = 20;
// How long a comparison waits for shards that only a parity group has: a killed node may return.
constexpr int64_t kComparableMs = 30'000;
constexpr int64_t kComparablePollMs = 250;

/// Runs its functions in the destructor, the last first.
class Undo {
 public:
  ~Undo() {
    while (!todo_.empty()) {
      todo_.back()();
      todo_.pop_back();
    }
  }
  Undo() = default;
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  void Add(std::function<void()> what) { todo_.push_back(std::move(what)); }

 private:
  std::vector<std::function<void()>> todo_;
};

/// Waits. Returns Cancelled after the first signal, which DeferInterrupt only records.
Status Pause(int64_t ms) {
  HOLDFAST_RETURN_IF_ERROR(Interrupt::SleepFor(ms));
  return DeferInterrupt::seen() ? CancelledError("interrupted") : Status::Ok();
}

bool Succeeded(const Status& status) { return status.ok(); }
ErrorCode CodeOf(const Status& status) { return status.code(); }
template <typename Value>
bool Succeeded(const Result<Value>& result) {
  return result.has_value();
}
template <typename Value>
ErrorCode CodeOf(const Result<Value>& result) {
  return result.error().code();
}

bool MentionsFullDisk(const coordinator::NodeStatus& node) {
  return std::any_of(node.warnings().begin(), node.warnings().end(), [](const std::string& text) {
    return text.find("full") != std::string::npos;
  });
}

const coordinator::NodeStatus* Find(const coordinator::GetStatusReply& status,
                                    const std::string& name) {
  for (const auto& node : status.nodes()) {
    if (node.node() == name) return &node;
  }
  return nullptr;
}
}  // namespace

/// Training and retention continue during a drill, so a version may be removed at any time.
template <typename Try>
auto DrillRunner::OnSomeVersion(DrillPlan* plan, Try attempt) -> decltype(attempt()) {
  for (int tries = 1;; ++tries) {
    auto result = attempt();
    const bool removed = !Succeeded(result) && CodeOf(result) == ErrorCode::kNotFound;
    if (plan->kind != DrillKind::kCorruptShard || !removed || tries == kVersionTries) return result;
    if (!planner_.ChooseVersion(plan).ok()) return result;
  }
}

Result<std::string> DrillRunner::Rehearse(DrillPlan* plan) {
  return OnSomeVersion(plan, [&] { return injection_.Rehearse(*plan); });
}

/// Undoes the fault, and waits until killed nodes are back.
Status DrillRunner::End(const DrillPlan& plan, int64_t timeout_ms) {
  const auto until = context_.clock.Now() + std::chrono::milliseconds(timeout_ms);
  Status status;
  do {
    auto seen = client_.GetStatus(job_);
    status = seen ? Status::Ok() : seen.error();
    for (const std::string& name : plan.nodes) {
      const auto* node = seen ? Find(*seen, name) : nullptr;
      if (seen && (node == nullptr || !node->alive())) {
        status = UnavailableError(fmt::format("node {} is not back", name));
      }
    }
    const Status ended = injection_.End(plan, drill_);
    if (status.ok()) status = ended;
    if (status.ok()) return status;
    context_.clock.SleepFor(std::chrono::milliseconds(kPollMs));
  } while (context_.clock.Now() < until && !Interrupt::requested());
  return status;
}

// ---- what follows ----

int64_t DrillRunner::SinceInjection() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(context_.clock.Now() - injected_)
      .count();
}

Result<DrillRunner::Digests> DrillRunner::DigestsOf(std::optional<VersionId> version) {
  HOLDFAST_ASSIGN_OR_RETURN(auto plan, client_.PlanRestore(job_, version, 0));
  Digests digests;
  for (const auto& source : plan.sources()) digests[source.rank()] = source.digest();
  before_.digests.emplace(FromProto(plan.version()), digests);
  return digests;
}

/// Records the digests of a version that may be restored later.
void DrillRunner::RecordDigests(std::optional<VersionId> version) {
  static_cast<void>(DigestsOf(version).has_value());
}

Status DrillRunner::Begin() {
  before_ = Baseline{};
  HOLDFAST_ASSIGN_OR_RETURN(auto incidents, client_.ListIncidents(job_, 0));
  for (const auto& one : incidents.incidents()) {
    before_.incident = std::max(before_.incident, one.id());
  }
  HOLDFAST_ASSIGN_OR_RETURN(auto status, client_.GetStatus(job_));
  const coordinator::JobStatus& job = status.jobs(0);
  before_.committed = AnyVersion(job.memory_committed());
  before_.disk = AnyVersion(job.disk_committed());
  before_.newest_step = job.newest_seen_step();
  before_.incarnation = job.incarnation();
  RecordDigests(std::nullopt);
  drill_ = fmt::format("drill-{}", RandomHex(6));
  return Status::Ok();
}

/// Pins the newest version on disk and records its digests. The version that will be restored may
/// be committed when its digests can no longer be recorded: the pinned one is compared instead.
void DrillRunner::KeepOneVersion() {
  for (int tries = 0; tries < kVersionTries; ++tries) {
    // Retention may remove a version before the pin takes effect. A newer one is tried then.
    if (before_.disk && client_.Pin(job_, *before_.disk, true).ok()) {
      pinned_.insert(*before_.disk);
      if (DigestsOf(before_.disk)) {
        before_.kept = before_.disk;
        return;
      }
    }
    const auto status = client_.GetStatus(job_);
    if (!status || !Pause(kComparablePollMs).ok()) return;
    before_.disk = AnyVersion(status->jobs(0).disk_committed());
  }
}

DrillRunner::Snapshot DrillRunner::TakeSnapshot() {
  Snapshot snapshot;
  auto status = client_.GetStatus(job_);
  auto incidents = client_.ListIncidents(job_, 0);
  if (!status || !incidents) return snapshot;
  snapshot.reached = true;
  snapshot.status = *std::move(status);
  for (const auto& one : incidents->incidents()) {
    if (one.id() > before_.incident) snapshot.incidents.insert(snapshot.incidents.begin(), one);
  }
  return snapshot;
}

/// Takes times from new incidents. The coordinator's times count from the last sign of health,
/// those of the report from the injection.
void DrillRunner::ApplyIncidents(const DrillPlan& plan, const Snapshot& snapshot,
                                 DrillReport* report) {
  for (const coordinator::Incident& incident : snapshot.incidents) {
    const bool noted = incident.state() == "noted";
    // On a busy machine, ranks that are not the target are slow now and then, too.
    if (noted && !NamesSlowTarget(plan, incident)) continue;
    const int64_t ahead = (incident.wall_nanos() - injected_wall_) / 1'000'000;
    const auto take = [&](int64_t number, std::optional<int64_t>* into, bool first) {
      const std::optional<int64_t> ms = AnyNumber(number);
      if (ms && !(first && *into)) *into = std::max<int64_t>(ahead + *ms, 0);
    };
    take(incident.detect_ms(), &report->detect_ms, true);
    if (!report->incident) {
      report->incident = incident.id();
      report->incident_kind = incident.kind();
      report->blamed_ranks.assign(incident.ranks().begin(), incident.ranks().end());
      report->blamed_nodes.assign(incident.nodes().begin(), incident.nodes().end());
    }
    if (noted) continue;
    take(incident.decide_ms(), &report->decide_ms, false);
    take(incident.stop_ms(), &report->stop_ms, false);
    take(incident.restore_ms(), &report->restore_ms, false);
    take(incident.first_step_ms(), &report->recover_ms, false);
    report->lost_steps = std::max(report->lost_steps, AnyNumber(incident.lost_steps()));
    const std::optional<VersionId> restored = AnyVersion(incident.restored());
    if (!restored) continue;
    report->restored = restored;
    const auto lost =
        static_cast<int64_t>(before_.newest_step) - static_cast<int64_t>(restored->step.value);
    report->lost_steps = std::max({report->lost_steps.value_or(0), lost, int64_t{0}});
    if (pinned_.count(*restored) == 0 && client_.Pin(job_, *restored, true).ok()) {
      pinned_.insert(*restored);
    }
  }
}

/// Returns whether a noted incident names the target of a drill that slows it down.
bool DrillRunner::NamesSlowTarget(const DrillPlan& plan,
                                  const coordinator::Incident& incident) const {
  const auto& ranks = incident.ranks();
  if (plan.kind == DrillKind::kSlowRank) {
    return std::find(ranks.begin(), ranks.end(), *plan.rank) != ranks.end();
  }
  // An incident of a link names both ends.
  const auto named = [&nodes = incident.nodes()](const std::string& node) {
    return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
  };
  return plan.kind == DrillKind::kSlowLink && named(plan.nodes[0]) &&
         (plan.peer.empty() || named(plan.peer));
}

/// Returns whether the status shows a fault for which no incident is opened.
bool DrillRunner::FaultShows(const DrillPlan& plan, const Snapshot& snapshot) const {
  if (plan.kind == DrillKind::kKillCoordinator) return !snapshot.reached;
  if (!snapshot.reached || plan.nodes.empty()) return false;
  const auto* node = Find(snapshot.status, plan.nodes[0]);
  if (plan.kind == DrillKind::kKillAgent) {
    return node == nullptr || !node->alive();
  }
  return plan.kind == DrillKind::kFillDisk && node != nullptr && MentionsFullDisk(*node);
}

bool DrillRunner::Apply(const DrillPlan& plan, const Snapshot& snapshot, DrillReport* report) {
  const bool shows = FaultShows(plan, snapshot);
  if (shows && !report->detect_ms) report->detect_ms = SinceInjection();
  if (!snapshot.reached || snapshot.job() == nullptr) return false;
  const coordinator::JobStatus& job = *snapshot.job();
  ApplyIncidents(plan, snapshot, report);
  const bool open = std::any_of(snapshot.incidents.begin(), snapshot.incidents.end(),
                                [](const auto& one) { return one.state() == "open"; });
  const bool given_up = std::any_of(snapshot.incidents.begin(), snapshot.incidents.end(),
                                    [](const auto& one) { return one.state() == "given up"; });
  if (given_up) return true;
  const bool restarted = job.incarnation() != before_.incarnation;
  // Two nodes may have no traffic with each other.
  const bool restarts = TraitsOf(plan.kind).restarts && plan.peer.empty();
  const bool over = SinceInjection() >= plan.duration_ms || restarts;
  // After an unnoticed fault, a version that is newer than the fault shows that training recovered.
  const bool before = !over || restarts;
  if (before && !restarted && !open && !report->detect_ms) {
    before_.newest_step = std::max(before_.newest_step, job.newest_seen_step());
    if (TraitsOf(plan.kind).restarts) {
      RecordDigests(AnyVersion(job.memory_committed()));
      RecordDigests(AnyVersion(job.disk_committed()));
    }
  }
  if (restarts || restarted) return restarted && !open && report->recover_ms;
  const bool unseen = !report->detect_ms && SinceInjection() < plan.duration_ms + kNotDetectedMs;
  if (shows || !over || unseen) return false;
  // Training did not stop: it has recovered when versions are committed again.
  const std::optional<VersionId> committed = AnyVersion(job.memory_committed());
  for (const std::string& name : plan.nodes) {
    const auto* node = Find(snapshot.status, name);
    if (node == nullptr || !node->alive()) return false;
  }
  if (!before_.committed || !(committed > before_.committed)) return false;
  if (!report->recover_ms && before_.newest_step < committed->step.value) {
    report->recover_ms = SinceInjection();
    report->lost_steps = 0;
  }
  return report->recover_ms.has_value();
}

void DrillRunner::Follow(const DrillPlan& plan, int64_t give_up_ms, DrillReport* report) {
  if (plan.kind == DrillKind::kCorruptShard) return FollowCorruption(plan, give_up_ms, report);
  while (SinceInjection() < give_up_ms) {
    if (Apply(plan, TakeSnapshot(), report)) return;
    if (!Pause(kPollMs).ok()) return;
  }
  report->notes.push_back(fmt::format("no recovery within {} s", give_up_ms / 1000));
}

/// Follows a corrupted shard. The agent verifies it at once: otherwise the next scrub, or a
/// restore, would detect the corruption.
void DrillRunner::FollowCorruption(const DrillPlan& plan, int64_t give_up_ms, DrillReport* report) {
  report->notes.emplace_back("detection: by a verify that the drill requested at once");
  const ShardKey key{job_, *plan.version, Rank{*plan.rank}};
  const auto agent_at = plan.agents.find(plan.nodes[0]);
  if (agent_at == plan.agents.end()) return;
  auto agent = AgentClient::Open(plan.nodes[0], agent_at->second, context_.options, context_.clock);
  if (!agent) return;
  while (SinceInjection() < give_up_ms && Pause(kPollMs).ok()) {
    const Status status = agent->VerifyShard(key, Tier::kDisk, true, 0);
    if (status.code() == ErrorCode::kDataLoss && !report->detect_ms) {
      report->detect_ms = SinceInjection();
    }
    if (!status.ok() || !report->detect_ms) continue;
    report->recover_ms = SinceInjection();
    report->lost_steps = 0;
    return;
  }
}

/// Compares the digests of `version` with those recorded before, and each byte with its checksums.
void DrillRunner::CompareBytes(VersionId version, DrillReport* report) {
  const auto before = before_.digests.find(version);
  if (before == before_.digests.end()) {
    report->notes.emplace_back(
        "bytes: the digests of the restored version were not recorded before the fault");
    return;
  }
  const Digests known = before->second;
  auto now = DigestsOf(version);
  const int64_t give_up_ms = SinceInjection() + kComparableMs;
  while (!now && now.error().code() == ErrorCode::kFailedPrecondition &&
         SinceInjection() < give_up_ms && Pause(kComparablePollMs).ok()) {
    now = DigestsOf(version);
  }
  if (!now) {
    report->notes.push_back("bytes: " + now.error().message());
    return;
  }
  auto checked = CheckOnline(context_, {job_, version, true, 1});
  if (!checked) {
    report->notes.push_back("bytes: " + checked.error().message());
    return;
  }
  bool equal = true;
  for (const ShardCheck& check : checked->checks) {
    if (check.verdict != Verdict::kDamaged && check.verdict != Verdict::kMissing) continue;
    // The shard was decoded from its parity group, and every byte was verified. Its digest is
    // compared below.
    if (check.verdict == Verdict::kMissing && check.decodable) continue;
    report->notes.push_back(Printable(ToString(check.key) + ": " + check.message));
    // A parity shard that was lost with a node does not affect the restored bytes.
    if (check.verdict == Verdict::kMissing && IsParity(check.key.rank)) continue;
    equal = false;
  }
  report->bytes = equal && *now == known ? BytesVerdict::kEqual : BytesVerdict::kDiffer;
}

Result<DrillReport> DrillRunner::Run(DrillPlan plan, int64_t give_up_ms) {
  DeferInterrupt defer;
  HOLDFAST_RETURN_IF_ERROR(Begin());
  DrillReport report;
  report.kind = plan.kind;
  report.target = plan.Target();
  report.seed = plan.seed;
  {
    Undo undo;
    undo.Add([this] {
      for (const VersionId version : pinned_) {
        static_cast<void>(client_.Pin(job_, version, false).ok());
      }
      pinned_.clear();
    });
    if (plan.kind == DrillKind::kCorruptShard) {
      HOLDFAST_RETURN_IF_ERROR(
          OnSomeVersion(&plan, [&] { return client_.Pin(job_, *plan.version, true); }));
      pinned_.insert(*plan.version);
      RecordDigests(plan.version);
    }
    if (TraitsOf(plan.kind).restarts) KeepOneVersion();
    StoreRebuild rebuild(context_, client_, job_);
    if (plan.kind == DrillKind::kLoseStore) HOLDFAST_RETURN_IF_ERROR(rebuild.Record());
    injected_ = context_.clock.Now();
    injected_wall_ = context_.clock.WallNanos();
    report.wall_nanos = injected_wall_;
    undo.Add([&] {
      const Status ended = End(plan, plan.duration_ms + kEndTimeoutMs);
      if (!ended.ok()) report.notes.push_back("clean-up: " + ended.message());
    });
    HOLDFAST_ASSIGN_OR_RETURN(report.what, injection_.Begin(plan, drill_));
    injected_ += std::chrono::milliseconds(StartInMs(plan.kind));
    injected_wall_ += StartInMs(plan.kind) * 1'000'000;
    if (plan.kind == DrillKind::kLoseStore) {
      rebuild.Follow(
          plan, [this] { return SinceInjection(); }, give_up_ms, &report);
      pinned_.insert(rebuild.pinned().begin(), rebuild.pinned().end());
    } else {
      Follow(plan, give_up_ms, &report);
    }
    std::optional<VersionId> compared = plan.version ? plan.version : report.restored;
    if (report.bytes != BytesVerdict::kUnknown) compared.reset();  // compared already
    // Compares the pinned version when the restored one was committed too late to be recorded, or
    // has been removed.
    const bool comparable =
        compared && before_.digests.count(*compared) != 0 && DigestsOf(compared).has_value();
    if (compared && !comparable && before_.kept) {
      report.notes.push_back(fmt::format("bytes: {} cannot be compared, so {} was compared",
                                         ToString(*compared), ToString(*before_.kept)));
      compared = before_.kept;
    }
    if (report.recover_ms && compared) CompareBytes(*compared, &report);
  }
  if (DeferInterrupt::seen() || Interrupt::requested()) return Fail(CancelledError("interrupted"));
  return report;
}

}  // namespace holdfast::faults
