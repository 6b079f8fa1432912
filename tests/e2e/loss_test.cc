// Losses that `holdfast drill` cannot cause: processes that die at a crash point, disks that are
// lost or damaged while everything is down. HOLDFAST_LOSS names one. A real training job, which
// another launcher restarts, suffers the loss on a new cluster and runs to its end, with the final
// parameters of an uninterrupted run, byte for byte.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "testing/cluster/observer.h"
#include "testing/cluster/training.h"
#include "tests/e2e/cluster_test.h"

namespace holdfast::local {
namespace {
namespace fs = std::filesystem;
using std::chrono::milliseconds;

/// The live job that suffers a loss. The references must outlive the context.
struct LossContext {
  Cluster& cluster;
  Training& training;
  std::string job;
  /// Prints one line per event, for people.
  std::function<void(const std::string&)> print;
};

constexpr milliseconds kPatience(60'000);

Status AwaitSteps(LossContext& context, uint64_t more) {
  uint64_t target = context.training.newest_step() + more;
  if (context.training.AwaitStep(target, kPatience)) return Status::Ok();
  return DeadlineExceededError(
      fmt::format("training did not reach step {}\n{}", target, context.training.LogTail()));
}

/// Returns whether the job restored from the disks. A late rank may have decoded its shard from
/// those that other ranks had read from their disks into memory: "mixed".
bool RestoredFromDisks(LossContext& context) {
  std::set<std::string> tiers;
  for (const Restored& rank : context.training.restored()) tiers.insert(rank.tier);
  return tiers.size() > 1 || tiers.count("disk") == 1;
}

/// Restarts the trainers after a failure with `newest` steps done. All must restore the same step.
Status Resume(LossContext& context, uint64_t newest) {
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
  }
  context.print(fmt::format("restored at step {} of {}:{}", step, newest, tiers));
  if (!context.training.AwaitStep(step + 1, kPatience)) {
    return DeadlineExceededError("no step after the restore\n" + context.training.LogTail());
  }
  return Status::Ok();
}

Status KillRankMidCopy(LossContext& context) {
  context.print("the trainers restart; rank 1 will die in the middle of its sixth copy");
  HOLDFAST_RETURN_IF_ERROR(context.training.Start("client.mid_copy:6", 1));
  if (!context.training.AwaitFailure(kPatience)) {
    return DeadlineExceededError("rank 1 did not die in its copy");
  }
  context.print("rank 1 died in the middle of a copy");
  HOLDFAST_RETURN_IF_ERROR(Resume(context, context.training.newest_step()));
  return Status::Ok();
}

/// Checks after the restart of a server that training never stopped, and waits for a new commit.
Status AwaitNewCommit(LossContext& context) {
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
  context.print("training never stopped; version " + ToString(version) + " was committed");
  return Status::Ok();
}

Status KillCoordinatorBeforeCommit(LossContext& context) {
  context.cluster.coordinator().Kill();
  HOLDFAST_RETURN_IF_ERROR(context.cluster.StartCoordinator("coordinator.before_commit:3"));
  if (!context.cluster.coordinator().WaitFor(kPatience)) {
    return DeadlineExceededError("the coordinator did not reach its crash point");
  }
  context.print("the coordinator died between the last report and the commit");
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(context, 2));
  HOLDFAST_RETURN_IF_ERROR(context.cluster.StartCoordinator());
  HOLDFAST_RETURN_IF_ERROR(AwaitNewCommit(context));
  return Status::Ok();
}

/// Simulates a power loss: kills all processes, which loses the memory. Returns the steps done.
uint64_t KillAllProcesses(LossContext& context) {
  uint64_t newest = context.training.newest_step();
  context.training.KillAll();
  context.cluster.KillEverything();
  return newest;
}

/// Waits until a newer version is durable, which a restore after the loss of all memory can use.
Status AwaitDurable(LossContext& context) {
  HOLDFAST_ASSIGN_OR_RETURN(JobSummary now, Observe(context.cluster, context.job));
  auto durable =
      AwaitCommit(context.cluster, context.job, Tier::kDisk, now.disk_committed, kPatience);
  return durable ? Status::Ok() : durable.error();
}

/// Kills and restarts all processes. The job must restore from the disks.
Status LoseAllMemory(LossContext& context) {
  const uint64_t newest = KillAllProcesses(context);
  HOLDFAST_RETURN_IF_ERROR(context.cluster.Start());
  HOLDFAST_RETURN_IF_ERROR(Resume(context, newest));
  if (!RestoredFromDisks(context)) return DataLossError("the ranks did not restore from disk");
  return Status::Ok();
}

Status KillEverything(LossContext& context) {
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(context, 3));
  HOLDFAST_RETURN_IF_ERROR(AwaitDurable(context));
  context.print("SIGKILL everything: trainers, agents, keepers, coordinator; the memory is lost");
  HOLDFAST_RETURN_IF_ERROR(LoseAllMemory(context));
  return Status::Ok();
}

Status InterruptDiskWrite(LossContext& context) {
  HOLDFAST_RETURN_IF_ERROR(AwaitDurable(context));
  context.cluster.agent(2).Kill();
  HOLDFAST_RETURN_IF_ERROR(context.cluster.StartAgent(2, "volume.mid_write:2"));
  if (!context.cluster.agent(2).WaitFor(kPatience)) {
    return DeadlineExceededError("agent n2 did not reach its crash point");
  }
  context.print("agent n2 died in the middle of a disk write; all other processes die now");
  HOLDFAST_RETURN_IF_ERROR(LoseAllMemory(context));
  return Status::Ok();
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

Status KillNode(LossContext& context) {
  constexpr int kNode = 3;  // with the rank of the same number
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(context, 3));
  if (auto held = AwaitCommit(context.cluster, context.job, Tier::kPeer, {}, kPatience); !held) {
    return held.error();
  }
  context.print("node n3 is lost: agent, keeper, trainer and disk");
  context.training.KillRank(kNode);
  context.cluster.DestroyNode(kNode);
  context.training.AwaitFailure(kPatience);
  uint64_t newest = context.training.newest_step();
  HOLDFAST_RETURN_IF_ERROR(context.cluster.StartAgent(kNode));
  HOLDFAST_RETURN_IF_ERROR(context.cluster.AwaitAgent(kNode));
  context.print("an empty machine replaces it");
  HOLDFAST_RETURN_IF_ERROR(Resume(context, newest));
  for (const Restored& rank : context.training.restored()) {
    const std::string expected = rank.rank == kNode ? "peer" : "memory";
    if (rank.tier != expected) {
      return DataLossError(
          fmt::format("rank {} restored from {} instead of {}", rank.rank, rank.tier, expected));
    }
  }
  return Status::Ok();
}

Status FlipBitOnDisk(LossContext& context) {
  HOLDFAST_RETURN_IF_ERROR(AwaitSteps(context, 3));
  HOLDFAST_RETURN_IF_ERROR(AwaitDurable(context));
  context.training.KillAll();
  uint64_t newest = context.training.newest_step();
  HOLDFAST_ASSIGN_OR_RETURN(JobSummary summary, Observe(context.cluster, context.job));
  context.cluster.KillEverything();
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
  HOLDFAST_RETURN_IF_ERROR(Resume(context, newest));
  std::vector<Restored> restored = context.training.restored();
  // With parity on the other disks the shard is decoded, else the previous version is restored.
  const bool decoded = restored[1].tier == "peer";
  if (restored[0].step >= summary.disk_committed->step.value && !decoded) {
    return DataLossError("the damaged version was restored");
  }
  std::ifstream log(context.cluster.AgentLog(1));
  std::string text{std::istreambuf_iterator<char>(log), std::istreambuf_iterator<char>()};
  if (text.find("rank-1.safetensors") == std::string::npos) {
    return DataLossError("the damage is not named in the agent's log");
  }
  context.print(decoded ? "the damaged shard was decoded" : "the previous version was restored");
  return Status::Ok();
}

const std::map<std::string, Status (*)(LossContext&)>& AllLosses() {
  static const std::map<std::string, Status (*)(LossContext&)> losses = {
      {"kill-rank-in-copy", KillRankMidCopy},
      {"kill-coordinator-before-commit", KillCoordinatorBeforeCommit},
      {"kill-node", KillNode},
      {"kill-everything", KillEverything},
      {"interrupt-disk-write", InterruptDiskWrite},
      {"flip-bit-on-disk", FlipBitOnDisk},
  };
  return losses;
}

constexpr milliseconds kTimeout(120'000);

class LossTest : public ClusterTest {
 protected:
  void SetUp() override { options_.arena_bytes = 64ULL << 20; }

  TrainingOptions TrainingFor(const std::string& job, uint64_t step_sleep_ms) {
    TrainingOptions training;
    training.job = job;
    training.steps = 160;
    training.step_sleep_ms = step_sleep_ms;
    return training;
  }
};

TEST_F(LossTest, EndsBitIdentical) {
  const char* name = std::getenv("HOLDFAST_LOSS");
  if (name == nullptr) GTEST_SKIP() << "HOLDFAST_LOSS names the loss to cause";
  const auto loss = AllLosses().find(name);
  ASSERT_NE(loss, AllLosses().end()) << "unknown loss " << name;

  // One of the losses that end in a restore from disk stripes shards over several directories.
  if (loss->first == "kill-everything") options_.data_dirs = 3;
  if (std::getenv("HOLDFAST_NO_PEERS") != nullptr) {
    options_.agent_settings.push_back("peers.enabled=false");
  }
  const auto expected = UninterruptedParameters(TrainingFor("plain", 0), kTimeout);
  ASSERT_TRUE(expected.has_value()) << expected.error().ToString();

  Cluster cluster(options_);
  Status started = cluster.Start();
  ASSERT_TRUE(started.ok()) << started.ToString();
  Training training(&cluster, TrainingFor("charlm", 75));
  ASSERT_TRUE(training.Start().ok());
  ASSERT_TRUE(training.AwaitStep(3, kTimeout)) << training.LogTail();
  LossContext context{cluster, training, "charlm",
                      [](const std::string& line) { std::printf("%s\n", line.c_str()); }};
  const Status recovered = loss->second(context);
  ASSERT_TRUE(recovered.ok()) << recovered.ToString();

  Status finished = training.AwaitFinish(kTimeout);
  ASSERT_TRUE(finished.ok()) << finished.ToString();
  auto actual = training.FinalParameters();
  ASSERT_TRUE(actual.has_value());
  EXPECT_TRUE(*actual == *expected) << "final parameters differ";

  // The newest durable version must be readable completely.
  auto verify = cluster.Cli({"verify", "charlm", "--deep"});
  ASSERT_TRUE(verify.has_value());
  EXPECT_EQ(verify->exit_code, 0) << verify->out << verify->errors;
}

}  // namespace
}  // namespace holdfast::local
