#include "tests/e2e/drills.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "deploy/local/observer.h"

namespace holdfast::local {
namespace {
namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
constexpr milliseconds kPatience(60'000);

double MillisSince(steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - start).count();
}

Status AwaitSteps(Scene& scene, uint64_t more) {
  uint64_t target = scene.training.newest_step() + more;
  if (scene.training.AwaitStep(target, kPatience)) return Status::Ok();
  return DeadlineExceededError(
      fmt::format("training did not reach step {}\n{}", target, scene.training.LogTail()));
}

/// Starts the trainers again after a failure at `failed_at` with `newest` steps done; fills in how
/// they came back.
/// Each rank from its own disk, or, for those that came late, decoded from what the others had
/// read.
bool CameFromDisks(const DrillReport& report) {
  return report.tier == "disk" || report.tier == "mixed";
}

Status Resume(Scene& scene, steady_clock::time_point failed_at, uint64_t newest,
              DrillReport* report) {
  HOLDFAST_RETURN_IF_ERROR(scene.training.Start());
  WaitUntil([&] { return !scene.training.restored().empty() || scene.training.AnyEnded(); },
            kPatience);
  std::vector<Restored> restored = scene.training.restored();
  if (restored.empty()) {
    return DeadlineExceededError("the ranks did not come back\n" + scene.training.LogTail());
  }
  uint64_t step = restored[0].step;
  std::string tiers;
  for (const Restored& rank : restored) {
    if (rank.step != step) return DataLossError("ranks came back at different steps");
    tiers += fmt::format(" rank {} from {}", rank.rank, rank.tier);
    report->tier = report->tier.empty() || report->tier == rank.tier ? rank.tier : "mixed";
  }
  report->lost_steps = newest > step ? newest - step : 0;
  scene.say(fmt::format(
      "back at step {}:{}; {} lost", step, tiers,
      report->lost_steps == 1 ? "1 step" : fmt::format("{} steps", report->lost_steps)));
  if (!scene.training.AwaitStep(step + 1, kPatience)) {
    return DeadlineExceededError("no step after coming back\n" + scene.training.LogTail());
  }
  report->recover_ms = MillisSince(failed_at);
  return Status::Ok();
}

Result<DrillReport> KillRankMidStep(Scene& scene) {
  DrillReport report;
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(scene, 4));
  auto start = steady_clock::now();
  scene.say("SIGKILL rank 2 in the middle of a step");
  scene.training.KillRank(2);
  scene.training.AwaitFailure(kPatience);
  report.detect_ms = MillisSince(start);
  HOLDFAST_RETURN_IF_ERROR(Resume(scene, start, scene.training.newest_step(), &report));
  return report;
}

Result<DrillReport> KillRankMidCopy(Scene& scene) {
  DrillReport report;
  scene.say("trainers start again with rank 1 set to die in the middle of its sixth copy");
  HOLDFAST_RETURN_IF_ERROR(scene.training.Start("client.mid_copy:6", 1));
  if (!scene.training.AwaitFailure(kPatience)) {
    return Fail(DeadlineExceededError("rank 1 did not die in its copy"));
  }
  auto start = steady_clock::now();
  scene.say("rank 1 died in the middle of a copy");
  HOLDFAST_RETURN_IF_ERROR(Resume(scene, start, scene.training.newest_step(), &report));
  return report;
}

/// After a server came back: training never stopped, and commits go on.
Status AwaitNewCommit(Scene& scene, steady_clock::time_point failed_at, DrillReport* report) {
  if (scene.training.AnyEnded()) {
    return AbortedError("a trainer ended although only a server was killed\n" +
                        scene.training.LogTail());
  }
  // The coordinator may be on its way up.
  Result<JobView> before = Observe(scene.cluster, scene.job);
  WaitUntil([&] { return before || (before = Observe(scene.cluster, scene.job)); }, kPatience);
  if (!before) return before.error();
  HOLDFAST_ASSIGN_OR_RETURN(VersionId version, AwaitCommit(scene.cluster, scene.job, Tier::kMemory,
                                                           before->memory_committed, kPatience));
  report->recover_ms = MillisSince(failed_at);
  report->tier = "none";
  scene.say(fmt::format("training never stopped; version {} committed after {:.0f} ms",
                        ToString(version), report->recover_ms));
  return Status::Ok();
}

Result<DrillReport> KillAgent(Scene& scene) {
  DrillReport report;
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(scene, 3));
  auto start = steady_clock::now();
  scene.say("SIGKILL the agent of node n1; its memory is with the keeper");
  scene.cluster.agent(1).Kill();
  report.detect_ms = MillisSince(start);
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(scene, 3));
  HOLDFAST_RETURN_IF_ERROR(scene.cluster.StartAgent(1));
  HOLDFAST_RETURN_IF_ERROR(scene.cluster.AwaitAgent(1));
  HOLDFAST_RETURN_IF_ERROR(AwaitNewCommit(scene, start, &report));
  return report;
}

Result<DrillReport> KillCoordinator(Scene& scene) {
  DrillReport report;
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(scene, 3));
  auto start = steady_clock::now();
  scene.say("SIGKILL the coordinator");
  scene.cluster.coordinator().Kill();
  report.detect_ms = MillisSince(start);
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(scene, 3));
  HOLDFAST_RETURN_IF_ERROR(scene.cluster.StartCoordinator());
  HOLDFAST_RETURN_IF_ERROR(AwaitNewCommit(scene, start, &report));
  return report;
}

Result<DrillReport> KillCoordinatorBeforeCommit(Scene& scene) {
  DrillReport report;
  scene.cluster.coordinator().Kill();
  HOLDFAST_RETURN_IF_ERROR(scene.cluster.StartCoordinator("coordinator.before_commit:3"));
  if (!scene.cluster.coordinator().WaitFor(kPatience)) {
    return Fail(DeadlineExceededError("the coordinator did not reach its crash point"));
  }
  auto start = steady_clock::now();
  scene.say("the coordinator died between the last report and the commit");
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(scene, 2));
  HOLDFAST_RETURN_IF_ERROR(scene.cluster.StartCoordinator());
  HOLDFAST_RETURN_IF_ERROR(AwaitNewCommit(scene, start, &report));
  return report;
}

/// Power off: every process dies at once and the memory is gone. Returns the steps done.
uint64_t KillAllProcesses(Scene& scene) {
  uint64_t newest = scene.training.newest_step();
  scene.training.KillAll();
  scene.cluster.KillEverything();
  return newest;
}

/// Waits until something newer is durable, so that a loss of all memory has something to come back
/// to.
Result<VersionId> AwaitDurable(Scene& scene) {
  HOLDFAST_ASSIGN_OR_RETURN(JobView now, Observe(scene.cluster, scene.job));
  return AwaitCommit(scene.cluster, scene.job, Tier::kDisk, now.disk_committed, kPatience);
}

/// Kills all processes and starts them again; the job has to come back from the disks.
Status LoseAllMemory(Scene& scene, VersionId durable, DrillReport* report) {
  const auto start = steady_clock::now();
  const uint64_t newest = KillAllProcesses(scene);
  report->detect_ms = MillisSince(start);
  HOLDFAST_RETURN_IF_ERROR(scene.cluster.Start());
  HOLDFAST_RETURN_IF_ERROR(Resume(scene, start, newest, report));
  if (!CameFromDisks(*report)) return DataLossError("did not come back from disk");
  report->note = "durable before: " + ToString(durable);
  return Status::Ok();
}

Result<DrillReport> KillEverything(Scene& scene) {
  DrillReport report;
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(scene, 3));
  HOLDFAST_ASSIGN_OR_RETURN(VersionId durable, AwaitDurable(scene));
  scene.say("SIGKILL everything: trainers, agents, keepers, coordinator; the memory is gone");
  HOLDFAST_RETURN_IF_ERROR(LoseAllMemory(scene, durable, &report));
  return report;
}

Result<DrillReport> InterruptDiskWrite(Scene& scene) {
  DrillReport report;
  HOLDFAST_ASSIGN_OR_RETURN(VersionId durable, AwaitDurable(scene));
  scene.cluster.agent(2).Kill();
  HOLDFAST_RETURN_IF_ERROR(scene.cluster.StartAgent(2, "volume.mid_write:2"));
  if (!scene.cluster.agent(2).WaitFor(kPatience)) {
    return Fail(DeadlineExceededError("agent n2 did not reach its crash point"));
  }
  scene.say("agent n2 died in the middle of a disk write; now everything else dies too");
  HOLDFAST_RETURN_IF_ERROR(LoseAllMemory(scene, durable, &report));
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

Result<DrillReport> KillNode(Scene& scene) {
  constexpr int kNode = 3;  // with the rank of the same number
  DrillReport report;
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(scene, 3));
  if (auto held = AwaitCommit(scene.cluster, scene.job, Tier::kPeer, {}, kPatience); !held) {
    return Fail(held.error());
  }
  auto start = steady_clock::now();
  scene.say("node n3 is gone: agent, keeper, trainer and disk");
  scene.training.KillRank(kNode);
  scene.cluster.DestroyNode(kNode);
  scene.training.AwaitFailure(kPatience);
  report.detect_ms = MillisSince(start);
  uint64_t newest = scene.training.newest_step();
  HOLDFAST_RETURN_IF_ERROR(scene.cluster.StartAgent(kNode));
  HOLDFAST_RETURN_IF_ERROR(scene.cluster.AwaitAgent(kNode));
  scene.say("an empty machine takes its place");
  HOLDFAST_RETURN_IF_ERROR(Resume(scene, start, newest, &report));
  for (const Restored& rank : scene.training.restored()) {
    const std::string expected = rank.rank == kNode ? "peer" : "memory";
    if (rank.tier != expected) {
      return Fail(DataLossError(
          fmt::format("rank {} came back from {} instead of {}", rank.rank, rank.tier, expected)));
    }
  }
  return report;
}

Result<DrillReport> FlipBitOnDisk(Scene& scene) {
  DrillReport report;
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(scene, 3));
  if (auto durable = AwaitDurable(scene); !durable) return Fail(durable.error());
  scene.training.KillAll();
  uint64_t newest = scene.training.newest_step();
  HOLDFAST_ASSIGN_OR_RETURN(JobView view, Observe(scene.cluster, scene.job));
  auto start = steady_clock::now();
  scene.cluster.KillEverything();
  report.detect_ms = MillisSince(start);
  // What was on its way to the disk when the view was taken may have arrived.
  const VersionId committed = *view.disk_committed;
  const std::string dir = scene.cluster.DataDirs(1)[0] + "/" + scene.job;
  for (uint64_t step = committed.step.value; step <= newest + 1; ++step) {
    const VersionId version{committed.incarnation, Step{step}};
    const std::string shard = fmt::format("{}/v{}/rank-1.safetensors", dir, ToString(version));
    if (!fs::exists(shard)) continue;
    scene.say("everything is down; one bit flips in " +
              fs::relative(shard, scene.cluster.root()).string());
    HOLDFAST_RETURN_IF_ERROR(FlipBit(shard, fs::file_size(shard) / 2));
  }
  HOLDFAST_RETURN_IF_ERROR(scene.cluster.Start());
  HOLDFAST_RETURN_IF_ERROR(Resume(scene, start, newest, &report));
  std::vector<Restored> restored = scene.training.restored();
  // With parity on the other disks the shard is decoded, else the version before is used.
  const bool decoded = restored[1].tier == "peer";
  if (restored[0].step >= view.disk_committed->step.value && !decoded) {
    return Fail(DataLossError("the damaged version was used"));
  }
  std::ifstream log(scene.cluster.AgentLog(1));
  std::string text{std::istreambuf_iterator<char>(log), std::istreambuf_iterator<char>()};
  if (text.find("rank-1.safetensors") == std::string::npos) {
    return Fail(DataLossError("the damage is not named in the agent's log"));
  }
  report.note = "version " + ToString(*view.disk_committed) + " damaged, " +
                (decoded ? "the shard decoded by its group" : "the one before used");
  return report;
}

/// Called again and again: what retention frees after one call is taken by the next.
void FillUp(const std::string& path) {
  std::ofstream file(path, std::ios::binary | std::ios::app);
  std::string block(1 << 16, 'x');
  while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
  }
}

Result<DrillReport> FullDisk(Scene& scene) {
  DrillReport report;
  std::string dir = scene.cluster.DataDirs(kSmallDiskNode)[0];
  std::error_code error;
  fs::space_info space = fs::space(dir, error);
  if (error || space.capacity > (1ULL << 30)) {
    report.skipped = true;
    report.note = "node n3 has no small disk: no loop device, or not root";
    return report;
  }
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(scene, 3));
  if (auto durable = AwaitDurable(scene); !durable) return Fail(durable.error());
  std::string filler = dir + "/../filler";
  auto start = steady_clock::now();
  scene.say("the disk of node n3 is full");
  bool seen = WaitUntil(
      [&] {
        FillUp(filler);
        auto view = Observe(scene.cluster, scene.job);
        return view && std::count(view->codes.begin(), view->codes.end(), "DISK_FULL") > 0;
      },
      kPatience);
  report.detect_ms = MillisSince(start);
  Status outcome = seen ? Status::Ok() : DeadlineExceededError("status never showed DISK_FULL");
  if (seen) {
    scene.say(fmt::format("status shows DISK_FULL after {:.0f} ms", report.detect_ms));
    outcome = AwaitNewCommit(scene, start, &report);
  }
  fs::remove(filler, error);
  HOLDFAST_RETURN_IF_ERROR(outcome);
  HOLDFAST_ASSIGN_OR_RETURN(VersionId durable, AwaitDurable(scene));
  scene.say("there is room again; version " + ToString(durable) + " is durable");
  report.tier = "none";
  return report;
}

}  // namespace

const std::vector<Drill>& AllDrills() {
  static const std::vector<Drill> drills = {
      {"kill-rank", "a rank is killed in the middle of a step", KillRankMidStep},
      {"kill-rank-in-copy", "a rank is killed in the middle of a copy", KillRankMidCopy},
      {"kill-agent", "an agent is killed and started again", KillAgent},
      {"kill-coordinator", "the coordinator is killed and started again", KillCoordinator},
      {"kill-coordinator-before-commit", "the coordinator dies between the reports and the commit",
       KillCoordinatorBeforeCommit},
      {"kill-node", "a node is lost with its memory and its disk", KillNode},
      {"kill-everything", "everything is killed at once, the memory is gone", KillEverything},
      {"interrupt-disk-write", "a disk write is interrupted and everything dies",
       InterruptDiskWrite},
      {"flip-bit-on-disk", "a bit flips in the newest shard on disk", FlipBitOnDisk},
      {"full-disk", "a node's disk is full", FullDisk},
  };
  return drills;
}

}  // namespace holdfast::local
