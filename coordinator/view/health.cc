#include "coordinator/view/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/json/values.h"
#include "coordinator/api/convert.h"
#include "coordinator/api/node_warning.h"
#include "coordinator/api/tier_fields.h"

namespace holdfast::view {

namespace {

using coord::AnyVersion;
using coord::FromProto;
using coordinator::JobStatus;
using coordinator::NodeStatus;

constexpr uint32_t kDiskLowPercent = 10;
// A version or two may be aborted while a job starts.
constexpr uint64_t kAbortsMax = 3;

bool IsSet(const coordinator::Version& version) { return version.incarnation() != 0; }

std::string Name(const coordinator::Version& version) { return ToString(FromProto(version)); }

/// Whether the node has not attached since the coordinator started.
bool IsUnseen(const NodeStatus& node) { return !node.alive() && node.seen_wall_nanos() == 0; }

/// Returns the number of nodes that may still attach to a coordinator that has just started. What
/// they have is not known until then.
size_t Awaited(const coordinator::GetStatusReply& status) {
  if (!status.attaching()) return 0;
  return static_cast<size_t>(std::ranges::count_if(status.nodes(), IsUnseen));
}

void ExamineNode(const NodeStatus& node, bool any_alive, int64_t now, std::vector<Finding>& out) {
  std::string subject = "node " + node.node();
  if (node.draining()) {
    out.push_back({"NODE_DRAINED", HealthLevel::kWarn, subject,
                   "it gets no workers and no parity until `holdfast drain " + node.node() +
                       " --undo`: " + node.drain_why()});
  }
  if (!node.alive()) {
    std::string since = node.seen_wall_nanos() > 0
                            ? "last seen " + FormatAge(now - node.seen_wall_nanos()) + " ago"
                            : "not seen since the coordinator started";
    out.push_back({"NODE_DOWN", any_alive ? HealthLevel::kWarn : HealthLevel::kError, subject,
                   "its agent does not answer, " + since});
    return;
  }
  for (const auto& other : node.other_lives()) {
    out.push_back(
        {"OTHER_LIFE", HealthLevel::kError, subject,
         fmt::format("it has {} replicas of job {} (newest {}, life {}) of another life of the "
                     "coordinator's store, which do not count; run `holdfast adopt --dry-run`",
                     other.shards(), other.job(), Name(other.newest()),
                     ToString(LifeId{other.life()}))});
  }
  bool full = false;
  for (const std::string& warning : node.warnings()) {
    const std::string_view code = coord::NodeWarningCode(warning);
    full = full || code == "DISK_FULL";
    const bool stopped = code == "INVARIANT_VIOLATED";
    out.push_back(
        {std::string(code), stopped ? HealthLevel::kError : HealthLevel::kWarn, subject, warning});
  }
  // 0 without a warning: an agent without data directories.
  if (!full && node.disk_free_percent() > 0 && node.disk_free_percent() < kDiskLowPercent) {
    out.push_back({"DISK_LOW", HealthLevel::kWarn, subject,
                   fmt::format("{}% of its data directories is free", node.disk_free_percent())});
  }
}

/// Reports committed versions that cannot be restored now.
void ExamineRestorable(const JobStatus& job, std::vector<Finding>& out) {
  std::string subject = "job " + job.job();
  const std::optional<VersionId> newest =
      std::max(AnyVersion(job.memory_committed()), AnyVersion(job.disk_committed()));
  if (!newest) return;
  const std::string& why = job.not_restorable_why();
  if (!IsSet(job.restorable())) {
    out.push_back({"NOT_RESTORABLE", HealthLevel::kError, subject,
                   "no committed version can be restored now" + (why.empty() ? "" : ": " + why)});
  } else if (FromProto(job.restorable()) < *newest) {
    out.push_back(
        {"RESTORE_BEHIND", HealthLevel::kWarn, subject,
         fmt::format("{} is committed, but a restart now would restore {}{}", ToString(*newest),
                     Name(job.restorable()), why.empty() ? "" : ": " + why)});
  }
}

/// Returns whether the job has ended: it has no trainers and waits for none.
bool IsOver(const JobStatus& job) { return job.state() == "ended" || job.state() == "finished"; }

/// Reports a newest version that is not at every tier although no newer one follows.
void ExamineDurable(const JobStatus& job, std::vector<Finding>& out) {
  if (job.not_durable_why().empty()) return;
  out.push_back({"NOT_DURABLE", HealthLevel::kWarn, "job " + job.job(),
                 job.not_durable_why() + "; it is written there as soon as its nodes can"});
}

/// Reports jobs whose versions are not committed regularly.
void ExaminePace(const ClusterSnapshot& snapshot, const JobStatus& job, int64_t stale_after_nanos,
                 std::vector<Finding>& out) {
  std::string subject = "job " + job.job();
  const bool committed_any =
      job.committed_total() != 0 || IsSet(job.memory_committed()) || IsSet(job.disk_committed());
  const bool nothing_commits = !committed_any && job.aborted_total() >= kAbortsMax;
  // Also for a job that has ended: its user may have seen only exit code 0.
  if (nothing_commits) {
    out.push_back({"NOTHING_COMMITS", HealthLevel::kError, subject,
                   fmt::format("{} versions were aborted and none is committed; its agents' logs "
                               "have the reasons, `holdfast versions {} --all` lists them",
                               job.aborted_total(), job.job())});
  }
  JobHealth seen = HealthOf(snapshot, job);
  if (seen.phase == "waiting" || IsOver(job)) return;
  if (job.ranks_joined() < job.world()) {
    out.push_back({"RANKS_MISSING", HealthLevel::kWarn, subject,
                   fmt::format("{} of {} ranks have joined", job.ranks_joined(), job.world())});
  }
  if (!committed_any && !nothing_commits) {
    out.push_back(
        {"NO_CHECKPOINT", HealthLevel::kWarn, subject,
         "no version is committed yet: after a failure now, training would start afresh"});
  }
  int64_t committed =
      std::max({seen.committed_wall_nanos[Tier::kMemory], seen.committed_wall_nanos[Tier::kDisk],
                job.committed_wall_nanos()});
  int64_t age = snapshot.now_wall_nanos - committed;
  if (committed > 0 && age > stale_after_nanos) {
    out.push_back(
        {"CHECKPOINT_STALE", HealthLevel::kWarn, subject,
         "the last commit was " + FormatAge(age) + " ago: its saves fail, or it does not save"});
    return;
  }
  int64_t peer_age = snapshot.now_wall_nanos - seen.committed_wall_nanos[Tier::kPeer];
  if (job.peer_members() > 0 && seen.committed_wall_nanos[Tier::kPeer] > 0 &&
      peer_age > stale_after_nanos) {
    out.push_back({"PEER_STALE", HealthLevel::kWarn, subject,
                   "the last commit at tier peer was " + FormatAge(peer_age) + " ago"});
  }
  int64_t disk_age = snapshot.now_wall_nanos - seen.committed_wall_nanos[Tier::kDisk];
  if (seen.committed_wall_nanos[Tier::kDisk] > 0 && disk_age > stale_after_nanos) {
    out.push_back({"DISK_STALE", HealthLevel::kWarn, subject,
                   "the last commit at tier disk was " + FormatAge(disk_age) + " ago"});
  }
}

/// Reports versions that lack shards which their parity groups should keep.
void ExamineRedundancy(const JobStatus& job, std::vector<Finding>& out) {
  if (job.under_protected_size() == 0) return;
  const coordinator::UnderProtected& newest = job.under_protected(0);
  std::string text = fmt::format("{} has {} of {} shards on disk", Name(newest.version()),
                                 newest.present(), newest.shards());
  if (newest.ordered() > 0) text += fmt::format(", {} being rebuilt now", newest.ordered());
  text += ": missing " + newest.why();
  if (job.under_protected_size() > 1) {
    const auto older = static_cast<uint64_t>(job.under_protected_size()) - 1;
    text += "; and " + Count(older, "older version");
  }
  out.push_back({"UNDER_PROTECTED", HealthLevel::kWarn, "job " + job.job(), text});
}

void ExamineRuns(const coordinator::GetRunsReply& runs, std::vector<Finding>& out) {
  for (const auto& node : runs.quarantine()) {
    const std::string until = node.testing()
                                  ? "its self-test has passed"
                                  : "`holdfast quarantine " + node.node() + " --release`";
    out.push_back({"NODE_QUARANTINED", HealthLevel::kWarn, "node " + node.node(),
                   "it gets no workers until " + until + ": " + node.why()});
  }
  for (const auto& run : runs.runs()) {
    const std::string subject = "job " + run.spec().job();
    if (run.phase() == "waiting") {
      out.push_back({"RUN_WAITING", HealthLevel::kWarn, subject, "its run " + run.why()});
    } else if (run.phase() == "failed") {
      out.push_back(
          {"RUN_FAILED", HealthLevel::kWarn, subject, "its run has failed: " + run.why()});
    }
  }
}

/// Reports disputed versions: a restore of one has a mixture of the ranks' values. An error while
/// the newest version is disputed.
void ExamineDisputes(const ClusterSnapshot& snapshot, const JobStatus& job,
                     std::vector<Finding>& out) {
  auto versions = snapshot.versions.find(job.job());
  if (versions == snapshot.versions.end()) return;
  size_t disputed = 0;
  VersionId newest_of_all;
  const coordinator::VersionInfo* newest = nullptr;
  for (const auto& version : versions->second.versions()) {
    if (version.state() != "committed" || version.abandoned()) continue;
    newest_of_all = std::max(newest_of_all, FromProto(version.version()));
    if (version.disputed_size() == 0) continue;
    ++disputed;
    if (newest == nullptr || FromProto(newest->version()) < FromProto(version.version())) {
      newest = &version;
    }
  }
  if (newest == nullptr) return;
  const bool current = FromProto(newest->version()) == newest_of_all;
  out.push_back({"DISPUTED", current ? HealthLevel::kError : HealthLevel::kWarn, "job " + job.job(),
                 fmt::format("tensor replicas differ between ranks in {} of its versions, the "
                             "newest of them {}: {}; `holdfast versions {} -o wide` names all "
                             "tensors",
                             disputed, Name(newest->version()), newest->disputed(0), job.job())});
}

/// Information, not a problem: an operator may run a job without parity on purpose.
void ExamineProtection(const JobStatus& job, std::vector<Finding>& out) {
  const bool joined = job.world() > 0 && job.ranks_joined() == job.world();
  if (!joined || IsOver(job) || job.not_protected_why().empty()) return;
  out.push_back(
      {"NOT_PROTECTED", HealthLevel::kOk, "job " + job.job(),
       "a version that is only in memory is lost with its node: " + job.not_protected_why()});
}

}  // namespace

JobHealth HealthOf(const ClusterSnapshot& snapshot, const JobStatus& job) {
  JobHealth seen;
  seen.job = &job;
  seen.phase = "joined";
  if (job.ranks_joined() < job.world()) seen.phase = "joining";
  if (job.ranks_joined() == 0) seen.phase = "waiting";
  if (IsOver(job)) seen.phase = job.state();
  auto versions = snapshot.versions.find(job.job());
  if (versions == snapshot.versions.end()) return seen;
  for (const auto& version : versions->second.versions()) {
    VersionId id = FromProto(version.version());
    for (const TierTraits& traits : kTierTable) {
      const auto& committed = coord::CommittedAt(job, traits.tier);
      if (IsSet(committed) && id == FromProto(committed)) {
        seen.committed_wall_nanos[traits.tier] = version.wall_nanos();
      }
    }
    if (version.state() == "pending") seen.pending_bytes += version.bytes();
  }
  return seen;
}

std::vector<Finding> Examine(const ClusterSnapshot& snapshot, int64_t stale_after_nanos) {
  if (!snapshot.status.stopped_why().empty()) {
    // The coordinator no longer knows which nodes and replicas exist, so nothing else is certain.
    return {{"INVARIANT_VIOLATED", HealthLevel::kError, "coordinator",
             "it commits nothing more, because an invariant is violated: " +
                 snapshot.status.stopped_why(),
             "holdfast status -o json"}};
  }
  std::vector<Finding> findings = ExamineNodes(snapshot.status, snapshot.now_wall_nanos);
  const bool reported = Awaited(snapshot.status) == 0;
  for (const JobStatus& job : snapshot.status.jobs()) {
    if (!reported) break;
    ExamineRestorable(job, findings);
    ExamineDurable(job, findings);
    ExaminePace(snapshot, job, stale_after_nanos, findings);
    ExamineRedundancy(job, findings);
    ExamineProtection(job, findings);
    ExamineDisputes(snapshot, job, findings);
  }
  ExamineRuns(snapshot.runs, findings);
  for (Finding& finding : findings) finding.next = NextCommand(finding.code, finding.subject);
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.level > b.level; });
  return findings;
}

std::vector<Finding> ExamineNodes(const coordinator::GetStatusReply& status,
                                  int64_t now_wall_nanos) {
  std::vector<Finding> findings;
  const auto& nodes = status.nodes();
  bool any_alive = std::any_of(nodes.begin(), nodes.end(), [](const auto& n) { return n.alive(); });
  const size_t awaited = Awaited(status);
  if (awaited != 0) {
    findings.push_back({"ATTACHING", HealthLevel::kWarn, "coordinator",
                        fmt::format("it has just started, and {} of {} nodes have not attached yet",
                                    awaited, nodes.size())});
  }
  for (const NodeStatus& node : nodes) {
    if (awaited != 0 && IsUnseen(node)) continue;
    ExamineNode(node, any_alive || awaited != 0, now_wall_nanos, findings);
  }
  for (const auto& refused : status.refused()) {
    findings.push_back({"NODE_REFUSED", HealthLevel::kError, "node " + refused.node(),
                        "the coordinator refuses its agent: " + refused.why()});
  }
  if (nodes.empty()) {
    findings.push_back({"NO_NODES", HealthLevel::kError, "cluster",
                        "no agent has attached: start holdfast-agent on each node; if one runs, "
                        "its log has the reason why it does not attach"});
  }
  return findings;
}

std::string NextCommand(const std::string& code, const std::string& subject) {
  // {} is the name of the node or job.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 28> kCommands{{
      {"ATTACHING", "holdfast nodes"},
      {"NODE_DOWN", "holdfast advise --without {}"},
      {"DISK_FULL", "holdfast versions --sort size"},
      {"DISK_FAILED", "holdfast advise --without {}"},
      {"DISK_LOW", "holdfast versions --sort size"},
      {"QUARANTINED_FILES", "holdfast nodes {} -o wide"},
      {"NO_NODES", "holdfast doctor"},
      {"NODE_REFUSED", "holdfast nodes {} -o wide"},
      {"OTHER_LIFE", "holdfast adopt --dry-run"},
      {"NOTHING_COMMITS", "holdfast versions {} --all"},
      {"IO_URING_REFUSED", "holdfast doctor"},
      {"KEEPER_LOST", "holdfast nodes {} -o wide"},
      {"KEEPER_SHARED", "holdfast nodes {} -o wide"},
      {"CLOCK_SKEWED", "holdfast nodes {} -o wide"},
      {"NODE_WARNING", "holdfast nodes {} -o wide"},
      {"RANKS_MISSING", "holdfast runs {} -o wide"},
      {"NO_CHECKPOINT", "holdfast versions {}"},
      {"NOT_RESTORABLE", "holdfast versions {} -o wide"},
      {"RESTORE_BEHIND", "holdfast versions {} -o wide"},
      {"NOT_DURABLE", "holdfast versions {} -o wide"},
      {"CHECKPOINT_STALE", "holdfast incidents --job {}"},
      {"PEER_STALE", "holdfast versions {} -o wide"},
      {"DISK_STALE", "holdfast nodes -o wide"},
      {"UNDER_PROTECTED", "holdfast nodes -o wide"},
      {"DISPUTED", "holdfast versions {} -o wide"},
      {"NODE_QUARANTINED", "holdfast incidents"},
      {"NODE_DRAINED", "holdfast drain {} --check"},
      {"RUN_FAILED", "holdfast incidents --job {}"},
  }};
  const size_t space = subject.find(' ');
  const std::string name = space == std::string::npos ? "" : subject.substr(space + 1);
  for (const auto& [known, command] : kCommands) {
    if (known == code) return fmt::format(fmt::runtime(command), name);
  }
  return "holdfast status " + (subject.starts_with("job ") ? name : "-o wide");
}

HealthLevel WorstLevel(const std::vector<Finding>& findings) {
  HealthLevel level = HealthLevel::kOk;
  for (const Finding& finding : findings) level = std::max(level, finding.level);
  return level;
}

std::string NameOf(HealthLevel level) {
  switch (level) {
    case HealthLevel::kOk:
      return "HOLDFAST_OK";
    case HealthLevel::kWarn:
      return "HOLDFAST_WARN";
    case HealthLevel::kError:
      return "HOLDFAST_ERR";
  }
  return "HOLDFAST_ERR";
}

}  // namespace holdfast::view
