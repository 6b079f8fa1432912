// Simulates a power failure after every operation of a workload, and another one during recovery.
#include <algorithm>
#include <map>

#include "base/log.h"
#include "tests/storage/volume/volume_test_util.h"

namespace holdfast {
namespace {

using ::testing::IsEmpty;

constexpr uint64_t kOperationBytes = 8192;

/// The last result that the caller has received for a shard: the oracle of the checks.
enum class Reported { kNothing, kInDoubt, kPublished, kRemovalInDoubt, kRemoved };

struct ExpectedShard {
  ShardIdentity identity;
  uint64_t data_bytes = 0;
  Reported reported = Reported::kNothing;
};

class Workload {
 public:
  Workload(SimDisk& disk, uint32_t directories) : disk_(disk), directories_(directories) {
    for (auto [step, rank, bytes] : std::initializer_list<std::tuple<uint64_t, uint32_t, uint64_t>>{
             {1, 0, 30'001}, {1, 1, 0}, {2, 0, 20'000}, {2, 1, 9'000}, {3, 0, 12'345}}) {
      expected_shards.push_back({Shard(1, step, rank), bytes, Reported::kNothing});
    }
  }

  /// Returns true when the workload ran to its end.
  bool Run() {
    auto opened = OpenSim(disk_, directories_, Options());
    if (!opened) return false;
    Volume& volume = **opened;
    if (!Publish(volume, expected_shards[0]) || !Publish(volume, expected_shards[1])) return false;
    if (!Abandon(volume, expected_shards[2])) return false;
    if (!Publish(volume, expected_shards[3])) return false;
    for (ExpectedShard* expected : {&expected_shards[0], &expected_shards[1]})
      expected->reported = Reported::kRemovalInDoubt;
    if (!volume.RemoveVersion("job", expected_shards[0].identity.version).ok()) return false;
    for (ExpectedShard* expected : {&expected_shards[0], &expected_shards[1]})
      expected->reported = Reported::kRemoved;
    if (!Publish(volume, expected_shards[4])) return false;
    // Publish into a removed version: its directory is new and must be made durable again.
    return Publish(volume, expected_shards[1]);
  }

  /// After the restart: reported shards are present, no others are offered, and no files leak.
  void Check() {
    auto opened = OpenSim(disk_, directories_, Options());
    ASSERT_TRUE(opened) << StatusOf(opened).ToString();
    Volume& volume = **opened;
    EXPECT_THAT(volume.recovery().quarantined, IsEmpty());
    size_t listed = 0;
    size_t files = directories_;
    for (ExpectedShard& expected : expected_shards) {
      auto stored = volume.List();
      auto found = std::find_if(stored.begin(), stored.end(), [&](const StoredShard& shard) {
        return shard.identity == expected.identity;
      });
      SCOPED_TRACE(ToString(expected.identity.key()));
      if (expected.reported == Reported::kPublished) {
        ASSERT_NE(found, stored.end());
      }
      if (expected.reported == Reported::kNothing || expected.reported == Reported::kRemoved) {
        ASSERT_EQ(found, stored.end());
      }
      if (found == stored.end()) {
        expected.reported = Reported::kRemoved;  // From here on the state is certain.
        continue;
      }
      expected.reported = Reported::kPublished;
      ++listed;
      files += 1 + found->parts;
      ExpectBitExact(volume, expected.identity, expected.data_bytes);
    }
    EXPECT_EQ(volume.List().size(), listed);
    EXPECT_EQ(disk_.Files().size(), files) << ::testing::PrintToString(disk_.Files());
  }

  /// After recovery, the volume accepts new shards.
  void CheckAcceptsShards() {
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

  std::vector<ExpectedShard> expected_shards;

 private:
  static bool Publish(Volume& volume, ExpectedShard& expected) {
    TestImage image(expected.identity, expected.data_bytes);
    auto writer = volume.CreateShard(expected.identity, image.image);
    if (!writer || !(*writer)->Advance(image.image.size() / 2).ok()) return false;
    expected.reported = Reported::kInDoubt;
    if (!(*writer)->Publish(image.Seal()).ok()) return false;
    expected.reported = Reported::kPublished;
    return true;
  }
  static bool Abandon(Volume& volume, const ExpectedShard& expected) {
    TestImage image(expected.identity, expected.data_bytes);
    auto writer = volume.CreateShard(expected.identity, image.image);
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
  // Thousands of recoveries would each log the files that they drop.
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
      workload.CheckAcceptsShards();
      if (HasFailure()) return;
      if (finished) break;
      ++crashes;
    }
  }
  EXPECT_GT(crashes, 90U);
}

TEST_P(VolumeCrashTest, EveryOperationOfTheRecovery) {
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
  // Rank 0 is quarantined, rank 1 is not. At no point is rank 1 lost or a byte of rank 0 deleted.
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
