#include "storage/volume/marker.h"

#include <fmt/format.h>

#include "base/job_name.h"
#include "storage/format/checksum.h"
#include "storage/volume/commits_file.h"
#include "storage/volume/seen_life.h"
#include "tests/storage/volume/volume_test_util.h"

namespace holdfast {
namespace {

using ::testing::HasSubstr;

constexpr char kMarkerPath[] = "d0/HOLDFAST";

void Overwrite(SimDisk& disk, const std::string& path, const std::string& text) {
  ASSERT_STATUS_OK(disk.Damage(path, [&](std::vector<std::byte>& bytes) {
    bytes.resize(text.size());
    std::memcpy(bytes.data(), text.data(), text.size());
  }));
}

TEST(Marker, RoundTripsAndDetectsEveryFlippedBit) {
  VolumeMarker marker{"prod", "0123456789abcdef", 2, 3};
  std::string text = RenderMarker(marker);
  auto parsed = ParseMarker(text, "here");
  ASSERT_TRUE(parsed) << StatusOf(parsed).ToString();
  EXPECT_EQ(*parsed, marker);
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string damaged = text;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(ParseMarker(damaged, "here")) << "bit " << bit;
  }
  for (size_t bytes = 0; bytes < text.size(); ++bytes) {
    EXPECT_FALSE(ParseMarker(text.substr(0, bytes), "here")) << bytes;
  }
  EXPECT_FALSE(ParseMarker(text + "\n", "here"));
}

TEST(SeenLife, RoundTripsAndDetectsEveryFlippedBit) {
  const SeenLife seen{LifeId{0x5d0f3a9be1c24770}, Epoch{12}, LifeId{7}};
  const std::string text = RenderSeenLife(seen);
  auto parsed = ParseSeenLife(text);
  ASSERT_TRUE(parsed) << StatusOf(parsed).ToString();
  EXPECT_EQ(*parsed, seen);
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string damaged = text;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(ParseSeenLife(damaged)) << "bit " << bit;
  }
  for (size_t bytes = 0; bytes < text.size(); ++bytes) {
    EXPECT_FALSE(ParseSeenLife(text.substr(0, bytes))) << bytes;
  }
  EXPECT_EQ(*ParseSeenLife(RenderSeenLife({})), SeenLife{});
  EXPECT_EQ(ParseSeenLife("holdfast_life = 2\nanything").error().code(), ErrorCode::kUnsupported);
}

TEST(Commits, RoundTripAndDetectEveryFlippedBit) {
  const std::vector<VersionCommit> commits = {
      {"gpt", LifeId{0x5d0f3a9be1c24770}, {Incarnation{3}, Step{120}}, 8, 0x1f},
      {"gpt", LifeId{0x5d0f3a9be1c24770}, {Incarnation{3}, Step{130}}, 8, ~0ULL}};
  const std::string text = RenderCommits(commits);
  auto parsed = ParseCommits(text);
  ASSERT_TRUE(parsed) << StatusOf(parsed).ToString();
  EXPECT_EQ(*parsed, commits);
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string damaged = text;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    ASSERT_FALSE(ParseCommits(damaged)) << "bit " << bit;
    EXPECT_EQ(ParseCommits(damaged).error().code(), ErrorCode::kDataLoss)
        << "no flipped bit looks like a newer format: bit " << bit;
  }
  for (size_t bytes = 0; bytes < text.size(); ++bytes) {
    EXPECT_FALSE(ParseCommits(text.substr(0, bytes))) << bytes;
  }
  EXPECT_TRUE(ParseCommits(RenderCommits({}))->empty());
  EXPECT_FALSE(ParseCommits(RenderCommits({commits[1], commits[0]}))) << "not in order";
  VersionCommit none = commits[0];
  none.digest = 0;
  EXPECT_FALSE(ParseCommits(RenderCommits({none})));
}

TEST(Commits, ANewerFormatIsUnsupported) {
  std::string text = "holdfast_commits = 2\nanything\n";
  text += fmt::format("crc32c = {:08x}\n", Crc32c(std::as_bytes(std::span(text))));
  EXPECT_EQ(ParseCommits(text).error().code(), ErrorCode::kUnsupported);
}

TEST(Commits, SurviveTheNextStartAndAreNoUnknownFile) {
  SimDisk disk;
  const std::vector<VersionCommit> commits = {
      {"gpt", LifeId{1}, {Incarnation{3}, Step{120}}, 8, 0x1f}};
  {
    auto volume = OpenSim(disk, 1);
    ASSERT_TRUE(volume);
    EXPECT_TRUE((*volume)->ReadCommits()->empty());
    ASSERT_TRUE((*volume)->WriteCommits(commits).ok());
  }
  disk.Crash(SimSurvival::kNothing);
  auto volume = OpenSim(disk, 1);
  ASSERT_TRUE(volume);
  EXPECT_EQ((*volume)->ReadCommits().value(), commits) << "synced with its directory";
  EXPECT_TRUE((*volume)->recovery().quarantined.empty());
  EXPECT_FALSE(ValidateJobName(kCommitsName).ok());
}

TEST(Marker, TheDocumentedExample) {
  EXPECT_EQ(RenderMarker({"prod", "9f0c2ad1b6e44713", 0, 3}),
            "holdfast = 1\ncluster = \"prod\"\nvolume = \"9f0c2ad1b6e44713\"\nindex = 0\n"
            "count = 3\ncrc32c = \"af641c4e\"\n");
}

TEST(Marker, NewerFormatIsRefusedAndKept) {
  SimDisk disk;
  ASSERT_TRUE(OpenSim(disk, 1));
  Overwrite(disk, kMarkerPath, "holdfast = 2\nfuture = true\n");
  auto volume = OpenSim(disk, 1);
  ASSERT_FALSE(volume);
  EXPECT_EQ(volume.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(volume.error().message(), HasSubstr("newer Holdfast"));
  EXPECT_THAT(disk.Files(), ::testing::ElementsAre(kMarkerPath));
}

TEST(Marker, DamagedMarkerIsNamed) {
  SimDisk disk;
  ASSERT_TRUE(OpenSim(disk, 1));
  Overwrite(disk, kMarkerPath, "holdfast = 1\n");
  auto volume = OpenSim(disk, 1);
  ASSERT_FALSE(volume);
  EXPECT_EQ(volume.error().code(), ErrorCode::kDataLoss);
  EXPECT_THAT(volume.error().message(), HasSubstr("/d0/HOLDFAST"));
}

TEST(Marker, AnotherClustersDirectoryIsRefusedNamingBoth) {
  SimDisk disk;
  ASSERT_TRUE(OpenSim(disk, 1, TestOptions("blue")));
  auto volume = OpenSim(disk, 1, TestOptions("green"));
  ASSERT_FALSE(volume);
  EXPECT_EQ(volume.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(volume.error().message(), HasSubstr("blue"));
  EXPECT_THAT(volume.error().message(), HasSubstr("green"));
}

TEST(Marker, ForeignDirectoryIsRefusedAndUntouched) {
  SimDisk disk;
  auto dirs = SimDirectories(disk, 1);
  ASSERT_STATUS_OK(dirs[0]->WriteSmallFile("thesis.tex", "precious"));
  auto volume = OpenSim(disk, 1);
  ASSERT_FALSE(volume);
  EXPECT_EQ(volume.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(volume.error().message(), HasSubstr("thesis.tex"));
  EXPECT_THAT(volume.error().message(), HasSubstr("Choose an empty directory"));
  EXPECT_THAT(disk.Files(), ::testing::ElementsAre("d0/thesis.tex"));
}

TEST(Marker, LeftoversOfMkfsAndACrashCountAsEmpty) {
  SimDisk disk;
  auto dirs = SimDirectories(disk, 1);
  ASSERT_STATUS_OK(dirs[0]->MakeDirectory("lost+found"));
  ASSERT_STATUS_OK(dirs[0]->WriteSmallFile("HOLDFAST.tmp.0123456789abcdef", "half"));
  auto volume = OpenSim(disk, 1);
  ASSERT_TRUE(volume) << StatusOf(volume).ToString();
  EXPECT_THAT(disk.Files(), ::testing::ElementsAre(kMarkerPath));
}

TEST(Marker, DirectoriesInAnotherOrderMissingOrOfAnotherVolumeAreRefused) {
  SimDisk disk;
  { ASSERT_TRUE(OpenSim(disk, 3)); }
  auto open = [&](std::vector<std::string> names) {
    std::vector<std::unique_ptr<Directory>> dirs;
    for (const std::string& name : names) dirs.push_back(disk.Open(name));
    return StatusOf(Volume::Open(std::move(dirs), TestOptions(), Clock::Real()));
  };
  EXPECT_STATUS_OK(open({"d0", "d1", "d2"}));
  EXPECT_THAT(open({"d0", "d2", "d1"}).message(), HasSubstr("original order"));
  EXPECT_THAT(open({"d0", "d1"}).message(), HasSubstr("only 2 are listed"));
  EXPECT_THAT(open({"d1", "d2"}).message(), HasSubstr("original order"));
  EXPECT_THAT(open({"d0", "empty", "d2"}).message(), HasSubstr("is its device mounted?"));
  EXPECT_THAT(open({"empty", "d1", "d2"}).message(), HasSubstr("is its device mounted?"));
  EXPECT_STATUS_OK(open({"other"}));
  EXPECT_THAT(open({"other", "d1"}).message(), HasSubstr("another volume"));
  EXPECT_STATUS_OK(open({"d0", "d1", "d2"}));
}

TEST(Marker, AVolumeGrowsByEmptyDirectoriesAtTheEnd) {
  SimDisk disk;
  TestImage image(Shard(1, 1, 0), 5000);
  {
    auto volume = OpenSim(disk, 1);
    ASSERT_STATUS_OK(WriteShard(**volume, image));
  }
  auto volume = OpenSim(disk, 3);
  ASSERT_TRUE(volume) << StatusOf(volume).ToString();
  ExpectBitExact(**volume, image.identity, 5000);
  volume->reset();
  EXPECT_FALSE(OpenSim(disk, 1));
}

TEST(Marker, ACrashAtAnyStepOfCreationIsSurvived) {
  for (SimSurvival survival :
       {SimSurvival::kNothing, SimSurvival::kEverything, SimSurvival::kRandom}) {
    for (uint64_t n = 0;; ++n) {
      SCOPED_TRACE(n);
      SimDisk disk(SimDiskOptions{.seed = n + 1});
      auto dirs = SimDirectories(disk, 3);
      disk.CrashAfterOperations(n);
      bool opened = Volume::Open(std::move(dirs), TestOptions(), Clock::Real()).has_value();
      disk.Crash(survival);
      auto again = OpenSim(disk, 3);
      ASSERT_TRUE(again) << StatusOf(again).ToString();
      EXPECT_THAT(disk.Files(),
                  ::testing::ElementsAre("d0/HOLDFAST", "d1/HOLDFAST", "d2/HOLDFAST"));
      if (opened) break;
    }
  }
}

TEST(Marker, TwoProcessesCannotOpenOneDirectory) {
  TempFolder folder;
  auto first = OpenReal(folder.Dirs(1));
  ASSERT_TRUE(first) << StatusOf(first).ToString();
  auto second = OpenReal(folder.Dirs(1));
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message(), HasSubstr("in use by another agent"));
  first->reset();
  EXPECT_TRUE(OpenReal(folder.Dirs(1)));
}

}  // namespace
}  // namespace holdfast
