// Many jobs on one agent, one after the other. Ended jobs leave no threads, descriptors, memory or
// work behind in the agent, the keeper and the coordinator. HOLDFAST_JOBS sets the number of jobs.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "testing/cluster/observer.h"
#include "testing/cluster/training.h"
#include "tests/e2e/cluster_test.h"

namespace holdfast::local {
namespace {

constexpr std::chrono::milliseconds kTimeout(120'000);
constexpr std::chrono::seconds kIdle(3);
constexpr int kWarmJobs = 12;
constexpr int64_t kMemorySlackBytes = 12 << 20;

/// What a process uses. The last two count since its start.
struct Usage {
  int64_t threads = 0;
  int64_t descriptors = 0;
  int64_t memory_bytes = 0;
  int64_t cpu_ms = 0;
  int64_t switches = 0;
};

int64_t FieldOf(const std::string& file, const std::string& name) {
  std::ifstream status(file);
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) == 0) return std::atoll(line.c_str() + name.size() + 1);
  }
  return 0;
}

Usage UsageOf(pid_t pid) {
  const std::string proc = fmt::format("/proc/{}", pid);
  Usage usage;
  usage.threads = FieldOf(proc + "/status", "Threads");
  usage.memory_bytes = FieldOf(proc + "/status", "RssAnon") << 10;
  std::error_code error;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(proc + "/fd", error)) {
    ++usage.descriptors;
  }
  for (const auto& task : std::filesystem::directory_iterator(proc + "/task", error)) {
    usage.switches += FieldOf(task.path().string() + "/status", "voluntary_ctxt_switches");
  }
  // The fields behind the name in parentheses; utime and stime are the 14th and the 15th of all.
  const std::string stat = ReadAll(proc + "/stat");
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 2)));
  std::string skipped;
  for (int i = 3; i < 14; ++i) fields >> skipped;
  int64_t user = 0, system = 0;
  fields >> user >> system;
  usage.cpu_ms = (user + system) * 1000 / ::sysconf(_SC_CLK_TCK);
  return usage;
}

/// The usage of a process, with the work of `kIdle` in place of that since its start.
Usage IdleUsageOf(pid_t pid) {
  const Usage begin = UsageOf(pid);
  std::this_thread::sleep_for(kIdle);
  Usage usage = UsageOf(pid);
  usage.cpu_ms -= begin.cpu_ms;
  usage.switches -= begin.switches;
  return usage;
}

uint64_t BytesIn(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, error)) {
    if (entry.is_regular_file(error)) bytes += entry.file_size(error);
  }
  return bytes;
}

class ManyJobsTest : public ClusterTest {
 protected:
  void SetUp() override {
    options_.nodes = 1;
    options_.arena_bytes = 64ULL << 20;
    options_.coordinator_settings = {"jobs.release_after_s=1"};
    StartServers();
  }
  void Train(int first, int count) {
    for (int i = first; i < first + count; ++i) {
      TrainingOptions options;
      options.job = fmt::format("job-{}", i);
      options.world = 1;
      options.steps = 12;
      Training training(&*cluster_, options);
      ASSERT_TRUE(training.Start().ok());
      const Status finished = training.AwaitFinish(kTimeout);
      ASSERT_TRUE(finished.ok()) << finished.ToString() << training.LogTail();
      last_ = options.job;
    }
    // The memory of the last job is released when no segment has descriptors any more.
    ASSERT_TRUE(WaitUntil(
        [&] {
          const auto shown = cluster_->Cli({"-o", "json", "status", last_});
          return shown && shown->out.find("\"finished\"") != std::string::npos &&
                 SegmentsOf(cluster_->KeeperPid(0)) == 0;
        },
        kTimeout))
        << SegmentsOf(cluster_->KeeperPid(0)) << " segments\n"
        << cluster_->Cli({"-o", "json", "status", last_})->out;
  }
  /// How many memfds the process has.
  static int SegmentsOf(pid_t pid) {
    int segments = 0;
    std::error_code error;
    for (const auto& entry :
         std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid), error)) {
      const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
      if (target.rfind("/memfd:", 0) == 0) ++segments;
    }
    return segments;
  }

  std::string last_;
};

TEST_F(ManyJobsTest, EndedJobsLeaveNothingBehindInTheServers) {
  const char* wanted = std::getenv("HOLDFAST_JOBS");
  const int jobs = wanted == nullptr ? 40 : std::atoi(wanted);
  ASSERT_NO_FATAL_FAILURE(Train(0, kWarmJobs));
  const std::map<std::string, pid_t> processes = {{"agent", cluster_->agent(0).pid()},
                                                  {"keeper", cluster_->KeeperPid(0)},
                                                  {"coordinator", cluster_->coordinator().pid()}};
  std::map<std::string, Usage> before;
  for (const auto& [name, pid] : processes) before[name] = IdleUsageOf(pid);
  const uint64_t store_before = BytesIn(options_.root + "/coordinator");
  ASSERT_NO_FATAL_FAILURE(Train(kWarmJobs, jobs - kWarmJobs));
  for (const auto& [name, pid] : processes) {
    const Usage& was = before[name];
    const Usage is = IdleUsageOf(pid);
    fmt::print(
        "{}: after {} and {} jobs: threads {} and {}, descriptors {} and {}, memory {} "
        "and {} KiB, CPU {} and {} ms, switches {} and {} in {} s\n",
        name, kWarmJobs, jobs, was.threads, is.threads, was.descriptors, is.descriptors,
        was.memory_bytes >> 10, is.memory_bytes >> 10, was.cpu_ms, is.cpu_ms, was.switches,
        is.switches, kIdle.count());
    // RocksDB and gRPC keep a few more at times; a leak adds at least one for each job.
    const int64_t slack = (jobs - kWarmJobs) / 4;
    EXPECT_LE(is.threads, was.threads + slack) << name;
    EXPECT_LE(is.descriptors, was.descriptors + slack) << name;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // both keep more memory
    EXPECT_LE(is.memory_bytes, was.memory_bytes + kMemorySlackBytes) << name;
#endif
    EXPECT_LE(is.cpu_ms, was.cpu_ms * 2 + 100) << name;
    EXPECT_LE(is.switches, was.switches * 3 / 2 + 100) << name;
  }
  const uint64_t store_after = BytesIn(options_.root + "/coordinator");
  fmt::print("store: {} and {} KiB\n", store_before >> 10, store_after >> 10);
  EXPECT_LE(store_after, store_before + (static_cast<uint64_t>(jobs) << 16));
}

}  // namespace
}  // namespace holdfast::local
