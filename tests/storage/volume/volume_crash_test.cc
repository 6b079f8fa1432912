// The power fails after every single operation of a workload, and again during recovery.
#include <algorithm>
#include <map>

#include "storage/base/log.h"
#include "tests/storage/volume/volume_test_util.h"

namespace holdfast {
namespace {

using ::testing::IsEmpty;

constexpr uint64_t kOperationBytes = 8192;

/// What the outside world was told: the oracle of the checks.
enum class Told { kNothing, kInDoubt, kPublished, kRemovalInDoubt, kRemoved };

struct ShardFact {
  ShardIdentity identity;
  uint64_t data_bytes = 0;
  Told told = Told::kNothing;
};

class Workload {
 public:
  Workload(SimDisk& disk, uint32_t directories) : disk_(disk), directories_(directories) {
    for (auto [step, rank, bytes] : std::initializer_list<std::tuple<uint64_t, uint32_t, uint64_t>>{
             {1, 0, 30'001}, {1, 1, 0}, {2, 0, 20'000}, {2, 1, 9'000}, {3, 0, 12'345}}) {
      facts.push_back({Shard(1, step, rank), bytes, Told::kNothing});
    }
  }

  /// True when it ran to its end.
  bool Run() {
    auto opened = OpenSim(disk_, directories_, Options());
    if (!opened) return false;
    Volume& volume = **opened;
    if (!Publish(volume, facts[0]) || !Publish(volume, facts[1])) return false;
    if (!Abandon(volume, facts[2])) return false;
    if (!Publish(volume, facts[3])) return false;
    for (ShardFact* fact : {&facts[0], &facts[1]}) fact->told = Told::kRemovalInDoubt;
    if (!volume.RemoveVersion("job", facts[0].identity.version).ok()) return false;
    for (ShardFact* fact : {&facts[0], &facts[1]}) fact->told = Told::kRemoved;
    if (!Publish(volume, facts[4])) return false;
    // A removed version again: its directory is a new one, to be made durable anew.
    return Publish(volume, facts[1]);
  }

  /// After power is back: promises are kept, nothing else is offered, nothing leaks.
  void Check() {
    auto opened = OpenSim(disk_, directories_, Options());
    ASSERT_TRUE(opened) << StatusOf(opened).ToString();
    Volume& volume = **opened;
    EXPECT_THAT(volume.recovery().quarantined, IsEmpty());
    size_t listed = 0;
    size_t files = directories_;
    for (ShardFact& fact : facts) {
      auto stored = volume.List();
      auto found = std::find_if(stored.begin(), stored.end(), [&](const StoredShard& shard) {
        return shard.identity == fact.identity;
      });
      SCOPED_TRACE(ToString(fact.identity.key()));
      if (fact.told == Told::kPublished) {
        ASSERT_NE(found, stored.end());
      }
      if (fact.told == Told::kNothing || fact.told == Told::kRemoved) {
        ASSERT_EQ(found, stored.end());
      }
      if (found == stored.end()) {
        fact.told = Told::kRemoved;  // Whatever was in doubt has one outcome from here on.
        continue;
      }
      fact.told = Told::kPublished;
      ++listed;
      files += 1 + found->parts;
      ExpectBitExact(volume, fact.identity, fact.data_bytes);
    }
    EXPECT_EQ(volume.List().size(), listed);
    EXPECT_EQ(disk_.Files().size(), files) << ::testing::PrintToString(disk_.Files());
  }

  /// After healing, work goes on.
  void CheckGoesOn() {
    auto opened = OpenSim(disk_, directories_, Options());
    ASSERT_TRUE(opened);
    TestImage image(Shard(2, 9, 0), 15'000);
    ASSERT_STATUS_OK(WriteShard(**opened, image));
    ExpectBitExact(**opened, image.identity, 15'000);
  }

  static VolumeOptions Options() {
    VolumeOptions options = TestOptions();
    options.io.operation_bytes = kOperationBytes;
    return options;
  }

  std::vector<ShardFact> facts;

 private:
  static bool Publish(Volume& volume, ShardFact& fact) {
    TestImage image(fact.identity, fact.data_bytes);
    auto writer = volume.CreateShard(fact.identity, image.image);
    if (!writer || !(*writer)->Advance(image.image.size() / 2).ok()) return false;
    fact.told = Told::kInDoubt;
    if (!(*writer)->Publish(image.Seal()).ok()) return false;
    fact.told = Told::kPublished;
    return true;
  }
  static bool Abandon(Volume& volume, const ShardFact& fact) {
    TestImage image(fact.identity, fact.data_bytes);
    auto writer = volume.CreateShard(fact.identity, image.image);
    return writer && (*writer)->Advance(image.image.size()).ok();
  }

  SimDisk& disk_;
  uint32_t directories_;
};

struct CrashCase {
  uint32_t directories;
  SimSurvival survival;
};

class VolumeCrashTest : public ::testing::TestWithParam<CrashCase> {
 protected:
  // Thousands of recoveries would each say what they dropped.
  static void SetUpTestSuite() { ConfigureLog("test", LogLevel::kError); }
};

SimDiskOptions DiskOptions(uint64_t seed) {
  return {.seed = seed, .operation_bytes = kOperationBytes};
}

TEST_P(VolumeCrashTest, EveryOperationOfTheWorkload) {
  uint64_t rounds = GetParam().survival == SimSurvival::kRandom ? 4 : 1;
  uint64_t crashes = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    for (uint64_t n = 0;; ++n) {
      SCOPED_TRACE("crash after operation " + std::to_string(n) + ", seed " +
                   std::to_string(round * 1000 + n + 1));
      SimDisk disk(DiskOptions(round * 1000 + n + 1));
      Workload workload(disk, GetParam().directories);
      disk.CrashAfterOperations(n);
      bool finished = workload.Run();
      disk.Crash(GetParam().survival);
      workload.Check();
      if (HasFatalFailure()) return;
      workload.CheckGoesOn();
      if (HasFailure()) return;
      if (finished) break;
      ++crashes;
    }
  }
  EXPECT_GT(crashes, 90U);
}

TEST_P(VolumeCrashTest, AndThenEveryOperationOfTheRecovery) {
  for (uint64_t n = 5;; n += 5 * GetParam().directories) {
    bool finished = false;
    for (uint64_t m = 0;; ++m) {
      SCOPED_TRACE("crash after operation " + std::to_string(n) + " and " + std::to_string(m) +
                   " of the recovery");
      SimDisk disk(DiskOptions(n * 1000 + m));
      Workload workload(disk, GetParam().directories);
      disk.CrashAfterOperations(n);
      finished = workload.Run();
      disk.Crash(GetParam().survival);
      disk.CrashAfterOperations(m);
      bool recovered = OpenSim(disk, GetParam().directories, Workload::Options()).has_value();
      disk.Crash(GetParam().survival);
      workload.Check();
      if (HasFailure()) return;
      workload.Check();
      if (HasFailure()) return;
      if (recovered) break;
    }
    if (finished) break;
  }
}

TEST_P(VolumeCrashTest, EveryOperationOfAQuarantine) {
  // Rank 0 is damaged, rank 1 is not: at no instant is rank 1 lost or a byte of rank 0 deleted.
  for (uint64_t n = 0;; ++n) {
    SCOPED_TRACE("crash after operation " + std::to_string(n));
    SimDisk disk(DiskOptions(n + 1));
    TestImage bad(Shard(1, 1, 0), 30'000);
    TestImage good(Shard(1, 1, 1), 30'000);
    std::unique_ptr<Volume> volume = *OpenSim(disk, GetParam().directories, Workload::Options());
    ASSERT_STATUS_OK(WriteShard(*volume, bad));
    ASSERT_STATUS_OK(WriteShard(*volume, good));
    size_t files = disk.Files().size();
    disk.CrashAfterOperations(n);
    bool done = volume->Quarantine(bad.identity.key(), "test").ok();
    volume.reset();
    disk.Crash(GetParam().survival);
    auto again = OpenSim(disk, GetParam().directories, Workload::Options());
    ASSERT_TRUE(again) << StatusOf(again).ToString();
    size_t listed = (*again)->List().size();
    EXPECT_TRUE(listed == 1 || (listed == 2 && !done)) << listed;
    ExpectBitExact(**again, good.identity, 30'000);
    if (listed == 2) ExpectBitExact(**again, bad.identity, 30'000);
    EXPECT_EQ(disk.Files().size(), files);
    if (HasFailure() || done) return;
  }
}

std::string CaseName(const ::testing::TestParamInfo<CrashCase>& tested) {
  static const char* const kNames[] = {"Nothing", "Everything", "Random"};
  return std::to_string(tested.param.directories) + kNames[static_cast<int>(tested.param.survival)];
}

INSTANTIATE_TEST_SUITE_P(
    Modes, VolumeCrashTest,
    ::testing::Values(CrashCase{1, SimSurvival::kNothing}, CrashCase{1, SimSurvival::kEverything},
                      CrashCase{1, SimSurvival::kRandom}, CrashCase{3, SimSurvival::kNothing},
                      CrashCase{3, SimSurvival::kEverything}, CrashCase{3, SimSurvival::kRandom}),
    CaseName);

}  // namespace
}  // namespace holdfast
