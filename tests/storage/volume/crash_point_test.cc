// Kills a real process at every named crash point on a real directory. The next process must find
// everything that was reported durable.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>

#include "tests/storage/volume/volume_test_util.h"

namespace holdfast {
namespace {

constexpr uint64_t kData = 5 * 1024 * 1024 + 99;

struct Point {
  const char* name;
  uint32_t directories;
};

std::ostream& operator<<(std::ostream& out, const Point& point) {
  return out << point.name << " with " << point.directories;
}

constexpr uid_t kOwner = 65'534;

/// The files of shards belong to another user, where this process may set that.
VolumeOptions OwnedOptions() {
  VolumeOptions options = TestOptions();
  if (::geteuid() != 0) return options;
  options.access = [](const std::string&) { return FileAccess{kOwner, {}}; };
  return options;
}

/// Expects that each complete file of a shard belongs to its owner, also after a crash.
void ExpectOwned(const TempFolder& folder) {
  if (::geteuid() != 0) return;
  for (const std::string& file : FilesBeneath(folder.path())) {
    if (file.find("/job/") == std::string::npos || file.find(".tmp.") != std::string::npos) {
      continue;
    }
    struct stat info {};
    ASSERT_EQ(::stat((folder.path() + "/" + file).c_str(), &info), 0) << file;
    EXPECT_EQ(info.st_uid, kOwner) << file;
    EXPECT_EQ(info.st_mode & 07777U, 0600U) << file;
  }
}

/// The child process: publishes versions 1 and 2, removes 1, publishes 3. Appends a line to the
/// file `reported` after each result.
TEST(CrashPointChild, DISABLED_Workload) {
  const char* folder = ::getenv("HOLDFAST_TEST_FOLDER");
  const char* count = ::getenv("HOLDFAST_TEST_DIRECTORIES");
  ASSERT_NE(folder, nullptr);
  ASSERT_NE(count, nullptr);
  auto report = [&](const std::string& line) {
    std::ofstream reported(std::string(folder) + "/reported", std::ios::app);
    reported << line << std::endl;
  };
  std::vector<std::string> paths;
  for (int i = 0; i < std::stoi(count); ++i) {
    paths.push_back(std::string(folder) + "/d" + std::to_string(i));
  }
  auto volume = OpenReal(paths, OwnedOptions());
  ASSERT_TRUE(volume) << StatusOf(volume).ToString();
  for (uint64_t step : {1, 2, 3}) {
    TestImage image(Shard(1, step, 0), kData);
    auto writer = (*volume)->CreateShard(image.identity, image.image);
    ASSERT_TRUE(writer);
    ASSERT_STATUS_OK((*writer)->Advance(image.image.size() / 2));
    ASSERT_STATUS_OK((*writer)->Publish(image.Seal()));
    report("published " + std::to_string(step));
    if (step != 2) continue;
    report("removing 1");
    ASSERT_STATUS_OK((*volume)->RemoveVersion("job", Shard(1, 1, 0).version));
    report("removed 1");
  }
}

/// Runs the child. Returns the signal that ended it, or minus its exit code.
int RunChild(const TempFolder& folder, const Point& point, int pass) {
  pid_t child = ::fork();
  if (child == 0) {
    std::string crash = std::string(point.name) + ":" + std::to_string(pass);
    ::setenv("HOLDFAST_CRASH", crash.c_str(), 1);
    ::setenv("HOLDFAST_TEST_FOLDER", folder.path().c_str(), 1);
    ::setenv("HOLDFAST_TEST_DIRECTORIES", std::to_string(point.directories).c_str(), 1);
    int null = ::open("/dev/null", O_WRONLY);
    ::dup2(null, 1);
    ::dup2(null, 2);
    ::execl("/proc/self/exe", "volume", "--gtest_also_run_disabled_tests",
            "--gtest_filter=CrashPointChild.*", nullptr);
    ::_exit(127);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

class CrashPointTest : public ::testing::TestWithParam<Point> {};

TEST_P(CrashPointTest, ReportedStateSurvivesTheCrash) {
#if !defined(HOLDFAST_CRASH_POINTS)
  GTEST_SKIP() << "built without crash points";
#endif
  // Crash at the first pass, and at the second, when durable data exists.
  for (int pass : {1, 2}) {
    SCOPED_TRACE(pass);
    TempFolder folder;
    int end = RunChild(folder, GetParam(), pass);
    if (pass == 1) {
      ASSERT_EQ(end, SIGKILL) << "the point was not reached";
    }
    std::string reported = std::filesystem::exists(folder.path() + "/reported")
                               ? ReadWhole(folder.path() + "/reported")
                               : std::string();
    ExpectOwned(folder);
    auto volume = OpenReal(folder.Dirs(GetParam().directories));
    ASSERT_TRUE(volume) << StatusOf(volume).ToString();
    EXPECT_THAT((*volume)->recovery().quarantined, ::testing::IsEmpty());
    size_t files = GetParam().directories;
    for (uint64_t step : {1, 2, 3}) {
      auto identity = Shard(1, step, 0);
      auto stored = (*volume)->List();
      bool listed = std::any_of(stored.begin(), stored.end(),
                                [&](const auto& shard) { return shard.identity == identity; });
      auto was_reported = [&](const std::string& what) {
        return reported.find(what + " " + std::to_string(step)) != std::string::npos;
      };
      if (was_reported("removed")) {
        EXPECT_FALSE(listed) << step;
      } else if (was_reported("published") && !was_reported("removing")) {
        EXPECT_TRUE(listed) << step;
      }
      if (!listed) continue;
      ExpectBitExact(**volume, identity, kData);
      files += 1 + GetParam().directories;
    }
    volume->reset();
    size_t have = 0;
    for (const std::string& file : FilesBeneath(folder.path())) have += file != "reported";
    EXPECT_EQ(have, files);
  }
}

std::vector<Point> AllPoints() {
  std::vector<Point> points;
  for (const char* name :
       {"volume.after_create", "volume.after_allocate", "volume.mid_write", "volume.after_drain",
        "volume.after_sync", "volume.after_rename", "volume.after_dir_sync",
        "volume.after_seal_write", "volume.after_seal_rename", "volume.after_publish",
        "volume.remove_after_tombstone", "volume.remove_mid_unlink", "volume.remove_done"}) {
    for (uint32_t directories : {1U, 2U}) points.push_back({name, directories});
  }
  return points;
}

INSTANTIATE_TEST_SUITE_P(Points, CrashPointTest, ::testing::ValuesIn(AllPoints()));

}  // namespace
}  // namespace holdfast
