#include "tests/e2e/drills.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "testing/cluster/observer.h"

namespace holdfast::local {
namespace {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
constexpr milliseconds kPatience(60'000);

double MillisSince(steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - start).count();
}

Status AwaitSteps(DrillContext& context, uint64_t more) {
  uint64_t target = context.training.newest_step() + more;
  if (context.training.AwaitStep(target, kPatience)) return Status::Ok();
  return DeadlineExceededError(
      fmt::format("training did not reach step {}\n{}", target, context.training.LogTail()));
}

/// Returns whether the job restored from the disks. A late rank may have decoded its shard from
/// those that other ranks had read from their disks into memory: "mixed".
bool RestoredFromDisks(const DrillReport& report) {
  return report.tier == "disk" || report.tier == "mixed";
}

/// Restarts the trainers after a failure at `failed_at` with `newest` steps done. Fills in the
/// recovery in `report`.
Status Resume(DrillContext& context, steady_clock::time_point failed_at, uint64_t newest,
              DrillReport* report) {
  HOLDFAST_RETURN_IF_ERROR(context.training.Start());
  WaitUntil([&] { return !context.training.restored().empty() || context.training.AnyEnded(); },
            kPatience);
  std::vector<Restored> restored = context.training.restored();
  if (restored.empty()) {
    return DeadlineExceededError("the ranks did not restore\n" + context.training.LogTail());
  }
  uint64_t step = restored[0].step;
  std::string tiers;
  for (const Restored& rank : restored) {
    if (rank.step != step) return DataLossError("ranks restored different steps");
    tiers += fmt::format(" rank {} from {}", rank.rank, rank.tier);
    report->tier = report->tier.empty() || report->tier == rank.tier ? rank.tier : "mixed";
  }
  report->lost_steps = newest > step ? newest - step : 0;
  context.print(fmt::format(
      "restored at step {}:{}; {} lost", step, tiers,
      report->lost_steps == 1 ? "1 step" : fmt::format("{} steps", report->lost_steps)));
  if (!context.training.AwaitStep(step + 1, kPatience)) {
    return DeadlineExceededError("no step after the restore\n" + context.training.LogTail());
  }
  report->recover_ms = MillisSince(failed_at);
  return Status::Ok();
}

Result<DrillReport> KillRankMidStep(DrillContext& context) {
  DrillReport report;
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(context, 4));
  auto start = steady_clock::now();
  context.print("SIGKILL rank 2 in the middle of a step");
  context.training.KillRank(2);
  context.training.AwaitFailure(kPatience);
  report.detect_ms = MillisSince(start);
  HOLDFAST_RETURN_IF_ERROR(Resume(context, start, context.training.newest_step(), &report));
  return report;
}

Result<DrillReport> KillRankMidCopy(DrillContext& context) {
  DrillReport report;
  context.print("the trainers restart; rank 1 will die in the middle of its sixth copy");
  HOLDFAST_RETURN_IF_ERROR(context.training.Start("client.mid_copy:6", 1));
  if (!context.training.AwaitFailure(kPatience)) {
    return Fail(DeadlineExceededError("rank 1 did not die in its copy"));
  }
  auto start = steady_clock::now();
  context.print("rank 1 died in the middle of a copy");
  HOLDFAST_RETURN_IF_ERROR(Resume(context, start, context.training.newest_step(), &report));
  return report;
}

/// Checks after the restart of a server that training never stopped, and waits for a new commit.
Status AwaitNewCommit(DrillContext& context, steady_clock::time_point failed_at,
                      DrillReport* report) {
  if (context.training.AnyEnded()) {
    return AbortedError("a trainer ended although only a server was killed\n" +
                        context.training.LogTail());
  }
  // The coordinator may still be starting.
  Result<JobSummary> before = Observe(context.cluster, context.job);
  WaitUntil([&] { return before || (before = Observe(context.cluster, context.job)); }, kPatience);
  if (!before) return before.error();
  HOLDFAST_ASSIGN_OR_RETURN(VersionId version,
                            AwaitCommit(context.cluster, context.job, Tier::kMemory,
                                        before->memory_committed, kPatience));
  report->recover_ms = MillisSince(failed_at);
  report->tier = "none";
  context.print(fmt::format("training never stopped; version {} committed after {:.0f} ms",
                            ToString(version), report->recover_ms));
  return Status::Ok();
}

Result<DrillReport> KillAgent(DrillContext& context) {
  DrillReport report;
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(context, 3));
  auto start = steady_clock::now();
  context.print("SIGKILL the agent of node n1; the keeper holds its memory");
  context.cluster.agent(1).Kill();
  report.detect_ms = MillisSince(start);
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(context, 3));
  HOLDFAST_RETURN_IF_ERROR(context.cluster.StartAgent(1));
  HOLDFAST_RETURN_IF_ERROR(context.cluster.AwaitAgent(1));
  HOLDFAST_RETURN_IF_ERROR(AwaitNewCommit(context, start, &report));
  return report;
}

Result<DrillReport> KillCoordinator(DrillContext& context) {
  DrillReport report;
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(context, 3));
  auto start = steady_clock::now();
  context.print("SIGKILL the coordinator");
  context.cluster.coordinator().Kill();
  report.detect_ms = MillisSince(start);
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(context, 3));
  HOLDFAST_RETURN_IF_ERROR(context.cluster.StartCoordinator());
  HOLDFAST_RETURN_IF_ERROR(AwaitNewCommit(context, start, &report));
  return report;
}

Result<DrillReport> KillCoordinatorBeforeCommit(DrillContext& context) {
  DrillReport report;
  context.cluster.coordinator().Kill();
  HOLDFAST_RETURN_IF_ERROR(context.cluster.StartCoordinator("coordinator.before_commit:3"));
  if (!context.cluster.coordinator().WaitFor(kPatience)) {
    return Fail(DeadlineExceededError("the coordinator did not reach its crash point"));
  }
  auto start = steady_clock::now();
  context.print("the coordinator died between the last report and the commit");
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(context, 2));
  HOLDFAST_RETURN_IF_ERROR(context.cluster.StartCoordinator());
  HOLDFAST_RETURN_IF_ERROR(AwaitNewCommit(context, start, &report));
  return report;
}

/// Simulates a power loss: kills all processes, which loses the memory. Returns the steps done.
uint64_t KillAllProcesses(DrillContext& context) {
  uint64_t newest = context.training.newest_step();
  context.training.KillAll();
  context.cluster.KillEverything();
  return newest;
}

/// Waits until a newer version is durable, which a restore after the loss of all memory can use.
Result<VersionId> AwaitDurable(DrillContext& context) {
  HOLDFAST_ASSIGN_OR_RETURN(JobSummary now, Observe(context.cluster, context.job));
  return AwaitCommit(context.cluster, context.job, Tier::kDisk, now.disk_committed, kPatience);
}

/// Kills and restarts all processes. The job must restore from the disks.
Status LoseAllMemory(DrillContext& context, VersionId durable, DrillReport* report) {
  const auto start = steady_clock::now();
  const uint64_t newest = KillAllProcesses(context);
  report->detect_ms = MillisSince(start);
  HOLDFAST_RETURN_IF_ERROR(context.cluster.Start());
  HOLDFAST_RETURN_IF_ERROR(Resume(context, start, newest, report));
  if (!RestoredFromDisks(*report)) return DataLossError("the ranks did not restore from disk");
  report->note = "durable before: " + ToString(durable);
  return Status::Ok();
}

Result<DrillReport> KillEverything(DrillContext& context) {
  DrillReport report;
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(context, 3));
  HOLDFAST_ASSIGN_OR_RETURN(VersionId durable, AwaitDurable(context));
  context.print("SIGKILL everything: trainers, agents, keepers, coordinator; the memory is lost");
  HOLDFAST_RETURN_IF_ERROR(LoseAllMemory(context, durable, &report));
  return report;
}

Result<DrillReport> InterruptDiskWrite(DrillContext& context) {
  DrillReport report;
  HOLDFAST_ASSIGN_OR_RETURN(VersionId durable, AwaitDurable(context));
  context.cluster.agent(2).Kill();
  HOLDFAST_RETURN_IF_ERROR(context.cluster.StartAgent(2, "volume.mid_write:2"));
  if (!context.cluster.agent(2).WaitFor(kPatience)) {
    return Fail(DeadlineExceededError("agent n2 did not reach its crash point"));
  }
  context.print("agent n2 died in the middle of a disk write; all other processes die now");
  HOLDFAST_RETURN_IF_ERROR(LoseAllMemory(context, durable, &report));
  return report;
}

Status FlipBit(const std::string& path, uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  if (!file) return NotFoundError("cannot open " + path);
  file.seekg(static_cast<std::streamoff>(offset));
  char byte = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 0x10));
  return file ? Status::Ok() : IoErrorError("cannot write " + path);
}

Result<DrillReport> KillNode(DrillContext& context) {
  constexpr int kNode = 3;  // with the rank of the same number
  DrillReport report;
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(context, 3));
  if (auto held = AwaitCommit(context.cluster, context.job, Tier::kPeer, {}, kPatience); !held) {
    return Fail(held.error());
  }
  auto start = steady_clock::now();
  context.print("node n3 is lost: agent, keeper, trainer and disk");
  context.training.KillRank(kNode);
  context.cluster.DestroyNode(kNode);
  context.training.AwaitFailure(kPatience);
  report.detect_ms = MillisSince(start);
  uint64_t newest = context.training.newest_step();
  HOLDFAST_RETURN_IF_ERROR(context.cluster.StartAgent(kNode));
  HOLDFAST_RETURN_IF_ERROR(context.cluster.AwaitAgent(kNode));
  context.print("an empty machine replaces it");
  HOLDFAST_RETURN_IF_ERROR(Resume(context, start, newest, &report));
  for (const Restored& rank : context.training.restored()) {
    const std::string expected = rank.rank == kNode ? "peer" : "memory";
    if (rank.tier != expected) {
      return Fail(DataLossError(
          fmt::format("rank {} restored from {} instead of {}", rank.rank, rank.tier, expected)));
    }
  }
  return report;
}

Result<DrillReport> FlipBitOnDisk(DrillContext& context) {
  DrillReport report;
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(context, 3));
  if (auto durable = AwaitDurable(context); !durable) return Fail(durable.error());
  context.training.KillAll();
  uint64_t newest = context.training.newest_step();
  HOLDFAST_ASSIGN_OR_RETURN(JobSummary summary, Observe(context.cluster, context.job));
  auto start = steady_clock::now();
  context.cluster.KillEverything();
  report.detect_ms = MillisSince(start);
  // Newer versions may have reached the disk after this summary was taken.
  const VersionId committed = *summary.disk_committed;
  const std::string dir = context.cluster.DataDirs(1)[0] + "/" + context.job;
  for (uint64_t step = committed.step.value; step <= newest + 1; ++step) {
    const VersionId version{committed.incarnation, Step{step}};
    const std::string shard = fmt::format("{}/v{}/rank-1.safetensors", dir, ToString(version));
    if (!fs::exists(shard)) continue;
    context.print("everything is down; one bit flips in " +
                  fs::relative(shard, context.cluster.root()).string());
    HOLDFAST_RETURN_IF_ERROR(FlipBit(shard, fs::file_size(shard) / 2));
  }
  HOLDFAST_RETURN_IF_ERROR(context.cluster.Start());
  HOLDFAST_RETURN_IF_ERROR(Resume(context, start, newest, &report));
  std::vector<Restored> restored = context.training.restored();
  // With parity on the other disks the shard is decoded, else the previous version is restored.
  const bool decoded = restored[1].tier == "peer";
  if (restored[0].step >= summary.disk_committed->step.value && !decoded) {
    return Fail(DataLossError("the damaged version was restored"));
  }
  std::ifstream log(context.cluster.AgentLog(1));
  std::string text{std::istreambuf_iterator<char>(log), std::istreambuf_iterator<char>()};
  if (text.find("rank-1.safetensors") == std::string::npos) {
    return Fail(DataLossError("the damage is not named in the agent's log"));
  }
  report.note = "version " + ToString(*summary.disk_committed) + " was damaged, " +
                (decoded ? "its shard was decoded" : "the previous version was restored");
  return report;
}

/// Fills the disk. Called repeatedly, since retention frees space between the calls.
void FillUp(const std::string& path) {
  std::ofstream file(path, std::ios::binary | std::ios::app);
  std::string block(1 << 16, 'x');
  while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
  }
}

Result<DrillReport> FullDisk(DrillContext& context) {
  DrillReport report;
  std::string dir = context.cluster.DataDirs(kSmallDiskNode)[0];
  std::error_code error;
  fs::space_info space = fs::space(dir, error);
  if (error || space.capacity > (1ULL << 30)) {
    report.skipped = true;
    report.note = "node n3 has no small disk: no loop device, or not root";
    return report;
  }
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(context, 3));
  if (auto durable = AwaitDurable(context); !durable) return Fail(durable.error());
  std::string filler = dir + "/../filler";
  auto start = steady_clock::now();
  context.print("the disk of node n3 is full");
  bool seen = WaitUntil(
      [&] {
        FillUp(filler);
        auto summary = Observe(context.cluster, context.job);
        return summary && std::count(summary->codes.begin(), summary->codes.end(), "DISK_FULL") > 0;
      },
      kPatience);
  report.detect_ms = MillisSince(start);
  Status outcome = seen ? Status::Ok() : DeadlineExceededError("status never showed DISK_FULL");
  if (seen) {
    context.print(fmt::format("status shows DISK_FULL after {:.0f} ms", report.detect_ms));
    outcome = AwaitNewCommit(context, start, &report);
  }
  fs::remove(filler, error);
  HOLDFAST_RETURN_IF_ERROR(outcome);
  HOLDFAST_ASSIGN_OR_RETURN(VersionId durable, AwaitDurable(context));
  context.print("the disk has free space again; version " + ToString(durable) + " is durable");
  report.tier = "none";
  return report;
}

}  // namespace

const std::vector<Drill>& AllDrills() {
  static const std::vector<Drill> drills = {
      {"kill-rank", "a rank is killed in the middle of a step", KillRankMidStep},
      {"kill-rank-in-copy", "a rank is killed in the middle of a copy", KillRankMidCopy},
      {"kill-agent", "an agent is killed and restarted", KillAgent},
      {"kill-coordinator", "the coordinator is killed and restarted", KillCoordinator},
      {"kill-coordinator-before-commit", "the coordinator dies between the reports and the commit",
       KillCoordinatorBeforeCommit},
      {"kill-node", "a node is lost with its memory and its disk", KillNode},
      {"kill-everything", "everything is killed at once, the memory is lost", KillEverything},
      {"interrupt-disk-write", "a disk write is interrupted and everything dies",
       InterruptDiskWrite},
      {"flip-bit-on-disk", "a bit flips in the newest shard on disk", FlipBitOnDisk},
      {"full-disk", "a node's disk is full", FullDisk},
  };
  return drills;
}

}  // namespace holdfast::local
