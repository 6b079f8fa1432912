// Checks that the simulated disk loses, tears, flips and refuses as documented, and never loses
// synced data.

#include "testing/disk/sim_directory.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/storage/io/io_test_util.h"

namespace holdfast {
namespace {

constexpr uint64_t kBytes = 16 * kBlockBytes;

std::unique_ptr<BlockFile> MustOpen(Directory& directory, const std::string& path, OpenMode mode) {
  auto file = directory.OpenFile(path, mode);
  EXPECT_TRUE(file.has_value()) << file.error().ToString();
  return file ? *std::move(file) : nullptr;
}

/// Creates a file with `content` and does not sync it.
std::unique_ptr<BlockFile> Write(Directory& directory, const std::string& path,
                                 AlignedBuffer& content) {
  auto file = MustOpen(directory, path, OpenMode::kCreateExclusive);
  if (file == nullptr) return nullptr;
  EXPECT_OK(file->Allocate(content.span().size()));
  EXPECT_OK(file->QueueWrite(0, content.span()));
  EXPECT_OK(file->Drain());
  return file;
}

bool Holds(Directory& directory, const std::string& path, AlignedBuffer& content) {
  auto file = MustOpen(directory, path, OpenMode::kRead);
  if (file == nullptr || file->Size().value_or(0) != content.span().size()) return false;
  AlignedBuffer back(content.span().size());
  return file->QueueRead(0, back.span()).ok() && file->Drain().ok() &&
         std::ranges::equal(back.span(), content.span());
}

TEST(SimDisk, SyncedFileInSyncedDirectorySurvives) {
  for (SimSurvival survival :
       {SimSurvival::kNothing, SimSurvival::kEverything, SimSurvival::kRandom}) {
    SimDisk disk;
    AlignedBuffer content(kBytes, 1);
    auto directory = disk.Open("data");
    ASSERT_OK(Write(*directory, "f", content)->Sync());
    ASSERT_OK(directory->SyncDirectory("."));
    disk.Crash(survival);
    auto after = disk.Open("data");
    EXPECT_TRUE(Holds(*after, "f", content));
  }
}

TEST(SimDisk, SyncedFileWithoutItsDirectoryIsLost) {
  SimDisk disk;
  AlignedBuffer content(kBytes, 1);
  auto directory = disk.Open();
  ASSERT_OK(Write(*directory, "f", content)->Sync());
  disk.Crash(SimSurvival::kNothing);
  EXPECT_TRUE(disk.Files().empty());
}

TEST(SimDisk, UnsyncedDataInASyncedDirectoryIsLost) {
  SimDisk disk;
  AlignedBuffer content(kBytes, 1);
  auto directory = disk.Open();
  auto file = Write(*directory, "f", content);
  ASSERT_OK(directory->SyncDirectory("."));
  disk.Crash(SimSurvival::kNothing);
  auto after = disk.Open();
  EXPECT_EQ(MustOpen(*after, "f", OpenMode::kRead)->Size().value_or(1), 0U);
}

TEST(SimDisk, UnsyncedOverwriteFollowsTheChosenSurvival) {
  for (SimSurvival survival : {SimSurvival::kNothing, SimSurvival::kEverything}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      SimDiskOptions options;
      options.seed = seed;
      SimDisk disk(options);
      AlignedBuffer old_content(kBytes, 1);
      AlignedBuffer new_content(kBytes, 2);
      auto directory = disk.Open();
      auto file = Write(*directory, "f", old_content);
      ASSERT_OK(file->Sync());
      ASSERT_OK(directory->SyncDirectory("."));
      ASSERT_OK(file->QueueWrite(0, new_content.span()));
      ASSERT_OK(file->Drain());
      file.reset();
      disk.Crash(survival);
      bool kept = survival == SimSurvival::kEverything;
      EXPECT_TRUE(Holds(*disk.Open(), "f", kept ? new_content : old_content));
    }
  }
}

TEST(SimDisk, UnsyncedRenameIsUndone) {
  SimDisk disk;
  auto directory = disk.Open();
  ASSERT_OK(directory->WriteSmallFile("old", "1"));
  ASSERT_OK(directory->WriteSmallFile("target", "0"));
  ASSERT_OK(directory->SyncDirectory("."));
  ASSERT_OK(directory->Rename("old", "target"));
  EXPECT_EQ(directory->ReadSmallFile("target", 10).value_or("?"), "1");
  disk.Crash(SimSurvival::kNothing);
  auto after = disk.Open();
  EXPECT_EQ(after->ReadSmallFile("old", 10).value_or("?"), "1");
  EXPECT_EQ(after->ReadSmallFile("target", 10).value_or("?"), "0");
  ASSERT_OK(after->Rename("old", "target"));
  ASSERT_OK(after->SyncDirectory("."));
  disk.Crash(SimSurvival::kNothing);
  after = disk.Open();
  EXPECT_EQ(after->ReadSmallFile("target", 10).value_or("?"), "1");
  EXPECT_EQ(disk.Files(), std::vector<std::string>{"target"});
}

TEST(SimDisk, UnsyncedRemovalIsUndone) {
  SimDisk disk;
  auto directory = disk.Open();
  ASSERT_OK(directory->MakeDirectory("d"));
  ASSERT_OK(directory->WriteSmallFile("d/f", "1"));
  ASSERT_OK(directory->SyncDirectory("d"));
  ASSERT_OK(directory->SyncDirectory("."));
  ASSERT_OK(directory->RemoveFile("d/f"));
  ASSERT_OK(directory->RemoveDirectory("d"));
  disk.Crash(SimSurvival::kNothing);
  auto after = disk.Open();
  EXPECT_EQ(after->ReadSmallFile("d/f", 10).value_or("?"), "1");
}

TEST(SimDisk, SyncingAChildDoesNotPersistItsOwnEntry) {
  SimDisk disk;
  auto directory = disk.Open();
  ASSERT_OK(directory->MakeDirectory("d"));
  ASSERT_OK(directory->WriteSmallFile("d/f", "1"));
  ASSERT_OK(directory->SyncDirectory("d"));
  disk.Crash(SimSurvival::kNothing);
  EXPECT_TRUE(disk.Open()->List(".").value().empty());
}

TEST(SimDisk, RenameBetweenDirectoriesIsAtomicUnderRandomCrashes) {
  std::set<std::string> outcomes;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SimDiskOptions options;
    options.seed = seed;
    SimDisk disk(options);
    auto directory = disk.Open();
    ASSERT_OK(directory->MakeDirectory("a"));
    ASSERT_OK(directory->MakeDirectory("b"));
    ASSERT_OK(directory->WriteSmallFile("a/f", "1"));
    for (const char* name : {"a", "b", "."}) ASSERT_OK(directory->SyncDirectory(name));
    ASSERT_OK(directory->Rename("a/f", "b/f"));
    ASSERT_OK(directory->Rename("b/f", "b/g"));
    disk.Crash(SimSurvival::kRandom);
    std::vector<std::string> files = disk.Files();
    ASSERT_EQ(files.size(), 1U) << "seed " << seed;
    EXPECT_EQ(disk.Open()->ReadSmallFile(files[0], 10).value_or("?"), "1");
    outcomes.insert(files[0]);
  }
  EXPECT_EQ(outcomes, (std::set<std::string>{"a/f", "b/f", "b/g"}));
}

TEST(SimDisk, RandomCrashTearsUnsyncedWritesAtSectors) {
  int torn = 0;
  int lost = 0;
  int whole = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SimDiskOptions options;
    options.seed = seed;
    SimDisk disk(options);
    auto directory = disk.Open();
    AlignedBuffer old_content(kBlockBytes, 1);
    AlignedBuffer new_content(kBlockBytes, 2);
    auto file = Write(*directory, "f", old_content);
    ASSERT_OK(file->Sync());
    ASSERT_OK(directory->SyncDirectory("."));
    ASSERT_OK(file->QueueWrite(0, new_content.span()));
    ASSERT_OK(file->Drain());
    file.reset();
    disk.Crash(SimSurvival::kRandom);
    AlignedBuffer back(kBlockBytes);
    auto reader = MustOpen(*disk.Open(), "f", OpenMode::kRead);
    ASSERT_OK(reader->QueueRead(0, back.span()));
    ASSERT_OK(reader->Drain());
    int fresh = 0;
    for (uint64_t at = 0; at < kBlockBytes; at += 512) {
      bool is_new =
          std::ranges::equal(back.span().subspan(at, 512), new_content.span().subspan(at, 512));
      bool is_old =
          std::ranges::equal(back.span().subspan(at, 512), old_content.span().subspan(at, 512));
      ASSERT_TRUE(is_new || is_old) << "a sector is torn, seed " << seed;
      fresh += is_new ? 1 : 0;
    }
    (fresh == 0 ? lost : fresh == 8 ? whole : torn)++;
  }
  EXPECT_GT(torn, 5);
  EXPECT_GT(lost, 5);
  EXPECT_GT(whole, 5);
}

TEST(SimDisk, AFailedSyncDropsTheDataPermanently) {
  SimDisk disk;
  AlignedBuffer content(kBytes, 1);
  auto directory = disk.Open();
  auto file = Write(*directory, "f", content);
  ASSERT_OK(directory->SyncDirectory("."));
  disk.Inject({.op = SimOp::kSync, .effect = SimEffect::kIoError, .path = {}});
  EXPECT_CODE(file->Sync(), ErrorCode::kIoError);
  EXPECT_CODE(file->Sync(), ErrorCode::kIoError);  // the error is sticky
  EXPECT_EQ(disk.count(SimOp::kSync), 1U);
  EXPECT_TRUE(Holds(*directory, "f", content));  // the page cache still has it
  // A later sync of the same file through another handle succeeds but writes nothing.
  auto other = MustOpen(*directory, "f", OpenMode::kRead);
  ASSERT_OK(other->Sync());
  disk.Crash(SimSurvival::kEverything);
  EXPECT_EQ(MustOpen(*disk.Open(), "f", OpenMode::kRead)->Size().value_or(1), 0U);
}

TEST(SimDisk, FaultsHitTheChosenOperation) {
  SimDisk disk;
  AlignedBuffer content(kBytes, 1);
  auto directory = disk.Open();
  disk.Inject({.op = SimOp::kWrite,
               .effect = SimEffect::kOutOfSpace,
               .skip = 1,
               .times = 1,
               .path = [](const std::string& path) { return path == "hit"; }});
  EXPECT_OK(Write(*directory, "spared", content)->Sync());
  auto file = MustOpen(*directory, "hit", OpenMode::kCreateExclusive);
  ASSERT_OK(file->QueueWrite(0, content.first(kBlockBytes)));
  ASSERT_OK(file->Drain());
  static_cast<void>(file->QueueWrite(kBlockBytes, content.first(kBlockBytes)));
  EXPECT_CODE(file->Drain(), ErrorCode::kOutOfSpace);
  EXPECT_CODE(file->Drain(), ErrorCode::kOutOfSpace);
  EXPECT_CODE(file->Sync(), ErrorCode::kOutOfSpace);
  auto next = MustOpen(*directory, "hit2", OpenMode::kCreateExclusive);
  ASSERT_OK(next->QueueWrite(0, content.span()));
  EXPECT_OK(next->Drain());
}

TEST(SimDisk, EveryOperationCanFail) {
  AlignedBuffer content(kBlockBytes, 1);
  for (size_t i = 0; i < kSimOpCount; ++i) {
    SCOPED_TRACE(i);
    SimDisk disk;
    auto directory = disk.Open();
    ASSERT_OK(directory->WriteSmallFile("there", "1"));
    ASSERT_OK(directory->MakeDirectory("d"));
    disk.Inject({.op = static_cast<SimOp>(i), .effect = SimEffect::kIoError, .path = {}});
    auto run = [&]() -> Status {
      HOLDFAST_ASSIGN_OR_RETURN(auto file, directory->OpenFile("f", OpenMode::kCreateExclusive));
      HOLDFAST_RETURN_IF_ERROR(file->Allocate(kBlockBytes));
      HOLDFAST_RETURN_IF_ERROR(file->QueueWrite(0, content.span()));
      HOLDFAST_RETURN_IF_ERROR(file->Drain());
      HOLDFAST_RETURN_IF_ERROR(file->Truncate(100));
      HOLDFAST_RETURN_IF_ERROR(file->Sync());
      HOLDFAST_RETURN_IF_ERROR(directory->Rename("f", "g"));
      HOLDFAST_RETURN_IF_ERROR(directory->SyncDirectory("."));
      HOLDFAST_ASSIGN_OR_RETURN(std::string text, directory->ReadSmallFile("there", 10));
      HOLDFAST_RETURN_IF_ERROR(directory->RemoveFile("g"));
      HOLDFAST_RETURN_IF_ERROR(directory->RemoveDirectory("d"));
      HOLDFAST_RETURN_IF_ERROR(directory->MakeDirectory("e"));
      HOLDFAST_ASSIGN_OR_RETURN(auto entries, directory->List("."));
      return Status::Ok();
    };
    EXPECT_CODE(run(), ErrorCode::kIoError);
  }
}

TEST(SimDisk, ShortCompletionsAreResumed) {
  SimDisk disk;
  AlignedBuffer content(kBytes, 1);
  auto directory = disk.Open();
  disk.Inject({.op = SimOp::kWrite, .effect = SimEffect::kShort, .times = 3, .path = {}});
  disk.Inject({.op = SimOp::kRead, .effect = SimEffect::kShort, .times = 2, .path = {}});
  ASSERT_OK(Write(*directory, "f", content)->Sync());
  EXPECT_EQ(disk.count(SimOp::kWrite), 4U);
  EXPECT_TRUE(Holds(*directory, "f", content));
  EXPECT_EQ(disk.count(SimOp::kRead), 3U);
}

// A file that ends within its last block is read up to the end, also where a completion was short.
TEST(SimDisk, AShortReadEndsAtTheEndOfTheFile) {
  SimDisk disk;
  AlignedBuffer content(kBytes, 1);
  auto directory = disk.Open();
  const uint64_t size = kBytes - kBlockBytes + 1307;
  ASSERT_OK(Write(*directory, "f", content)->Truncate(size));
  disk.Inject({.op = SimOp::kRead, .effect = SimEffect::kShort, .times = 20, .path = {}});
  AlignedBuffer back(kBytes);
  auto file = MustOpen(*directory, "f", OpenMode::kRead);
  ASSERT_OK(file->QueueRead(0, back.span()));
  ASSERT_OK(file->Drain());
  EXPECT_TRUE(std::ranges::equal(back.span().first(size), content.span().first(size)));
}

TEST(SimDisk, BitFlipsAtRestAndInTransfer) {
  SimDisk disk;
  AlignedBuffer content(kBytes, 1);
  auto directory = disk.Open();
  ASSERT_OK(Write(*directory, "f", content)->Sync());
  disk.Inject({.op = SimOp::kRead, .effect = SimEffect::kBitFlip, .path = {}});
  EXPECT_FALSE(Holds(*directory, "f", content));
  EXPECT_TRUE(Holds(*directory, "f", content));
  disk.Inject({.op = SimOp::kWrite, .effect = SimEffect::kBitFlip, .path = {}});
  ASSERT_OK(Write(*directory, "g", content)->Sync());
  EXPECT_FALSE(Holds(*directory, "g", content));
  EXPECT_FALSE(Holds(*directory, "g", content));
  ASSERT_OK(directory->SyncDirectory("."));
  ASSERT_OK(disk.Damage("f", [](std::vector<std::byte>& bytes) { bytes[7] ^= std::byte{4}; }));
  EXPECT_FALSE(Holds(*directory, "f", content));
  disk.Crash(SimSurvival::kNothing);
  EXPECT_FALSE(Holds(*disk.Open(), "f", content));
  EXPECT_CODE(disk.Damage("h", [](std::vector<std::byte>&) {}), ErrorCode::kNotFound);
}

TEST(SimDisk, DelaysOnTheGivenClock) {
  ManualClock clock;
  SimDiskOptions options;
  options.clock = &clock;
  SimDisk disk(options);
  auto directory = disk.Open();
  disk.Inject({.op = SimOp::kSync, .effect = SimEffect::kDelay, .path = {}, .delay_ms = 1500});
  auto before = clock.Now();
  ASSERT_OK(directory->WriteSmallFile("f", "1"));
  EXPECT_EQ(clock.Now() - before, std::chrono::milliseconds(1500));
}

TEST(SimDisk, FullDiskRefusesAllocateAndGrowth) {
  SimDiskOptions options;
  options.capacity_bytes = 10 * kBlockBytes;
  SimDisk disk(options);
  AlignedBuffer content(kBytes, 1);
  auto directory = disk.Open();
  auto file = MustOpen(*directory, "f", OpenMode::kCreateExclusive);
  EXPECT_CODE(file->Allocate(11 * kBlockBytes), ErrorCode::kOutOfSpace);
  ASSERT_OK(file->Allocate(8 * kBlockBytes));
  EXPECT_EQ(directory->FreeBytes().value_or(0), 2 * kBlockBytes);
  auto second = MustOpen(*directory, "g", OpenMode::kCreateExclusive);
  static_cast<void>(second->QueueWrite(0, content.first(3 * kBlockBytes)));
  EXPECT_CODE(second->Drain(), ErrorCode::kOutOfSpace);
  EXPECT_CODE(directory->WriteSmallFile("s", std::string(3 * kBlockBytes, 'x')),
              ErrorCode::kOutOfSpace);
  EXPECT_EQ(disk.Files(), (std::vector<std::string>{"f", "g"}));  // no half of "s"
  ASSERT_OK(file->QueueWrite(0, content.first(8 * kBlockBytes)));
  ASSERT_OK(file->Drain());
  // The space is freed when the last user closes the file.
  ASSERT_OK(directory->RemoveFile("f"));
  EXPECT_EQ(directory->FreeBytes().value_or(0), 2 * kBlockBytes);
  file.reset();
  EXPECT_EQ(directory->FreeBytes().value_or(0), 10 * kBlockBytes);
  disk.SetCapacity(0);
  EXPECT_EQ(directory->FreeBytes().value_or(1), 0U);
}

TEST(SimDisk, AfterTheCrashPointAllOperationsFailUntilCrash) {
  SimDisk disk;
  auto directory = disk.Open();
  disk.CrashAfterOperations(4);
  ASSERT_OK(directory->WriteSmallFile("f", "1"));  // create, write, sync
  ASSERT_OK(directory->SyncDirectory("."));
  EXPECT_FALSE(disk.crashed());
  EXPECT_CODE(directory->WriteSmallFile("g", "1"), ErrorCode::kIoError);
  EXPECT_TRUE(disk.crashed());
  EXPECT_CODE(directory->ReadSmallFile("f", 10), ErrorCode::kIoError);
  disk.Crash(SimSurvival::kNothing);
  EXPECT_FALSE(disk.crashed());
  EXPECT_CODE(directory->ReadSmallFile("f", 10),
              ErrorCode::kIoError);  // a handle from before the crash
  EXPECT_EQ(disk.Open()->ReadSmallFile("f", 10).value_or("?"), "1");
  EXPECT_EQ(disk.operations(), 6U);  // four, and open and read
}

/// Publishes "final" with `content` in the correct order.
Status Publish(Directory& directory, AlignedBuffer& content) {
  HOLDFAST_ASSIGN_OR_RETURN(auto file, directory.OpenFile("tmp", OpenMode::kCreateExclusive));
  HOLDFAST_RETURN_IF_ERROR(file->Allocate(content.span().size()));
  HOLDFAST_RETURN_IF_ERROR(file->QueueWrite(0, content.span()));
  HOLDFAST_RETURN_IF_ERROR(file->Drain());
  HOLDFAST_RETURN_IF_ERROR(file->Sync());
  HOLDFAST_RETURN_IF_ERROR(directory.Rename("tmp", "final"));
  return directory.SyncDirectory(".");
}

TEST(SimDisk, CrashAtEveryStepOfAPublish) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    AlignedBuffer content(kBytes, seed + 1);
    bool done = false;
    for (uint64_t steps = 0; !done; ++steps) {
      ASSERT_LT(steps, 100U);
      SimDiskOptions options;
      options.seed = seed;
      options.operation_bytes = 3 * kBlockBytes;
      SimDisk disk(options);
      auto directory = disk.Open();
      disk.CrashAfterOperations(steps);
      Status published = Publish(*directory, content);
      done = published.ok();
      disk.Crash(SimSurvival::kRandom);
      auto after = disk.Open();
      bool there = after->OpenFile("final", OpenMode::kRead).has_value();
      ASSERT_TRUE(there || !done) << "seed " << seed;
      ASSERT_TRUE(!there || Holds(*after, "final", content)) << "seed " << seed << " " << steps;
    }
  }
}

TEST(SimDisk, PublishingWithoutSyncIsCaught) {
  int damaged = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SimDiskOptions options;
    options.seed = seed;
    SimDisk disk(options);
    AlignedBuffer content(kBytes, seed + 1);
    auto directory = disk.Open();
    Write(*directory, "tmp", content);
    ASSERT_OK(directory->Rename("tmp", "final"));
    ASSERT_OK(directory->SyncDirectory("."));
    disk.Crash(SimSurvival::kRandom);
    damaged += Holds(*disk.Open(), "final", content) ? 0 : 1;
  }
  EXPECT_GT(damaged, 10);
}

TEST(SimDisk, CopiesBytesWhenTheWriteCompletes) {
  int seen = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SimDiskOptions options;
    options.seed = seed;
    SimDisk disk(options);
    AlignedBuffer content(kBytes, 1);
    AlignedBuffer wanted(kBytes, 1);
    auto directory = disk.Open();
    auto file = MustOpen(*directory, "f", OpenMode::kCreateExclusive);
    ASSERT_OK(file->QueueWrite(0, content.span()));
    std::ranges::fill(content.span(), std::byte{9});  // too early
    ASSERT_OK(file->Drain());
    seen += Holds(*directory, "f", wanted) ? 0 : 1;
  }
  EXPECT_EQ(seen, 10);
}

TEST(SimDisk, TheSameSeedGivesTheSameCrash) {
  auto run = [](uint64_t seed) {
    SimDiskOptions options;
    options.seed = seed;
    options.operation_bytes = kBlockBytes;
    SimDisk disk(options);
    AlignedBuffer content(kBytes, 1);
    auto directory = disk.Open();
    auto file = Write(*directory, "f", content);
    EXPECT_OK(directory->SyncDirectory("."));
    file.reset();
    disk.Crash(SimSurvival::kRandom);
    return disk.Open()->ReadSmallFile("f", kBytes).value_or("?");
  };
  std::set<std::string> distinct;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    EXPECT_EQ(run(seed), run(seed));
    distinct.insert(run(seed));
  }
  EXPECT_GT(distinct.size(), 3U);
}

}  // namespace
}  // namespace holdfast
