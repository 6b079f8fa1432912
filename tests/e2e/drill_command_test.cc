// `holdfast drill` against real processes: each failure is caused, measured and judged by the
// command; the job ends with the parameters of an uninterrupted run, and nothing is left behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "deploy/local/cluster.h"
#include "deploy/local/small_disk.h"
#include "deploy/local/training.h"

namespace holdfast::local {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;
constexpr milliseconds kTimeout(240'000);

class DrillCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = MakeTempDir("hfd").value();
    fs::create_directories(root_ + "/meet");
    options_.root = root_;
    options_.arena_bytes = 64ULL << 20;
  }
  void TearDown() override {
    if (cluster_) {
      static_cast<void>(cluster_->Cli({"stop", "lm", "--now"}).has_value());
      cluster_->KillEverything();
    }
    // Who was started again is nobody's child.
    for (const auto& [pid, name] : Processes()) ::kill(pid, SIGKILL);
    WaitUntil([&] { return Processes().empty(); }, milliseconds(20'000));
    EXPECT_TRUE(Processes().empty());
    cluster_.reset();
    disk_.reset();
    std::error_code ignored;
    if (std::getenv("HOLDFAST_KEEP") == nullptr) fs::remove_all(root_, ignored);
  }

  void StartJob(int nodes, int spares, int ranks_per_node, uint64_t steps, uint64_t sleep_ms = 60) {
    options_.nodes = nodes + spares;
    cluster_.emplace(options_);
    Status started = cluster_->Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
    ASSERT_TRUE(WaitUntil([&] { return NodesUp() == nodes + spares; }, kTimeout));
    world_ = nodes * ranks_per_node;
    steps_ = steps;
    const auto ran = Cli({"run",
                          "--job",
                          "lm",
                          "--detach",
                          "--grace",
                          "2s",
                          "--nnodes",
                          std::to_string(nodes),
                          "--nproc-per-node",
                          std::to_string(ranks_per_node),
                          "--spares",
                          std::to_string(spares),
                          "--max-restarts",
                          "100",
                          "--",
                          BinaryDir() + "/holdfast-charlm",
                          "--rendezvous",
                          root_ + "/meet",
                          "--steps",
                          std::to_string(steps),
                          "--step-sleep-ms",
                          std::to_string(sleep_ms),
                          "--final",
                          root_ + "/final"});
    ASSERT_EQ(ran.exit_code, 0) << ran.errors;
    ASSERT_TRUE(WaitUntil([&] { return NewestStep() >= 10; }, kTimeout));
  }

  int NodesUp() {
    const json answer = CliJson({"nodes"});
    int up = 0;
    if (!answer.is_object()) return 0;
    for (const json& node : answer["nodes"]) up += node["alive"] == true ? 1 : 0;
    return up;
  }
  uint64_t NewestStep() {
    const json status = CliJson({"status", "lm"});
    if (!status.is_object() || status["jobs"].empty()) return 0;
    return status["jobs"][0]["newest_seen_step"].get<uint64_t>();
  }
  Cluster::CliResult Cli(const std::vector<std::string>& arguments) {
    auto result = cluster_->Cli(arguments, kTimeout);
    return result ? *result : Cluster::CliResult{-1, "", result.error().ToString()};
  }
  json CliJson(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"-o", "json"});
    return json::parse(Cli(arguments).out, nullptr, false);
  }

  /// One drill, passed; its report is in report_.
  void Drill(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "drill");
    arguments.insert(arguments.end(), {"--job", "lm", "--yes", "-o", "json"});
    const Cluster::CliResult result = Cli(arguments);
    const json answer = json::parse(result.out, nullptr, false);
    ASSERT_TRUE(answer.is_object()) << result.errors << result.out;
    EXPECT_EQ(result.exit_code, 0) << result.errors << answer.dump(1);
    ASSERT_FALSE(answer["drills"].empty());
    reports_ = answer["drills"];
    report_ = reports_[0];
    std::printf("%s\n", answer.dump(1).c_str());
  }

  /// The job goes on to its end, which is the end it would have come to by itself.
  void ExpectSameEnd() {
    const Cluster::CliResult result = Cli({"run", "--follow", "--job", "lm"});
    ASSERT_EQ(result.exit_code, 0) << result.errors << result.out;
    TrainingOptions options;
    options.job = "plain";
    options.world = world_;
    options.steps = steps_;
    Training plain(nullptr, options);
    ASSERT_TRUE(plain.Start().ok());
    Status finished = plain.AwaitFinish(kTimeout);
    ASSERT_TRUE(finished.ok()) << finished.ToString();
    const std::string final = ReadAll(root_ + "/final");
    EXPECT_FALSE(final.empty());
    EXPECT_TRUE(final == plain.FinalParameters().value_or("")) << "final parameters differ";
    ExpectNothingLeft();
  }

  /// Processes of this cluster, by their arguments.
  std::map<pid_t, std::string> Processes() const {
    std::map<pid_t, std::string> found;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator("/proc", error)) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const std::string arguments = ReadAll(entry.path() / "cmdline");
      if (arguments.find(root_) == std::string::npos || std::stoi(name) == ::getpid()) continue;
      found[std::stoi(name)] = fs::path(arguments.substr(0, arguments.find('\0'))).filename();
    }
    return found;
  }

  /// One agent and keeper a node, one coordinator; no worker, no hand of a drill, no file of one.
  void ExpectNothingLeft() {
    std::map<std::string, int> wanted = {{"holdfast-agent", cluster_->nodes()},
                                         {"holdfast-keeper", cluster_->nodes()},
                                         {"holdfast-coordinator", 1}};
    std::map<std::string, int> there;
    const auto count = [&] {
      there.clear();
      for (const auto& [pid, name] : Processes()) ++there[name];
      return there == wanted;
    };
    WaitUntil(count, milliseconds(20'000));
    EXPECT_EQ(there, wanted);
    for (const auto& [pid, name] : Processes()) {
      if (name != "holdfast-keeper") continue;
      EXPECT_LE(MemoryFiles(pid), 4 * world_) << "memory leaks";
    }
    std::error_code error;
    for (const auto& entry : fs::recursive_directory_iterator(root_, error)) {
      EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".probe-")));
      EXPECT_NE(entry.path().parent_path().filename().string(), "drills") << entry.path();
    }
    const json versions = CliJson({"versions", "lm"});
    for (const json& version : versions["versions"]) EXPECT_EQ(version["pinned"], false);
  }
  static int MemoryFiles(pid_t pid) {
    int files = 0;
    std::error_code error;
    for (const auto& entry :
         fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
      const std::string target = fs::read_symlink(entry.path(), error);
      files += target.find("memfd:") != std::string::npos ? 1 : 0;
    }
    return files;
  }

  std::string root_;
  ClusterOptions options_;
  std::optional<SmallDisk> disk_;
  std::optional<Cluster> cluster_;
  int world_ = 0;
  uint64_t steps_ = 0;
  json reports_;
  json report_;
};

TEST_F(DrillCommandTest, AKilledRank) {
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 0, 1, 150));
  ASSERT_NO_FATAL_FAILURE(
      Drill({"kill-rank", "--target", "rank", "2", "--objective",
             "detect=60s,recover=120s,lost-steps=2", "--html", root_ + "/page.html"}));
  EXPECT_EQ(report_["blamed_ranks"], json({2}));
  EXPECT_EQ(report_["bytes_equal"], true);
  EXPECT_FALSE(report_["restored"].is_null());
  const std::string page = ReadAll(root_ + "/page.html");
  EXPECT_THAT(page, HasSubstr("<svg"));
  EXPECT_THAT(page, HasSubstr("first step"));
  EXPECT_THAT(page, Not(HasSubstr("src=")));
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, AHungRank) {
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 0, 1, 150));
  ASSERT_NO_FATAL_FAILURE(Drill({"hang-rank", "--target", "n3"}));
  EXPECT_THAT(report_["incident_kind"].get<std::string>(), HasSubstr("hang"));
  // Whoever stops in a collective is not told from its network: then the nodes are named.
  EXPECT_THAT(report_["blamed_ranks"].dump() + report_["blamed_nodes"].dump(), HasSubstr("3"));
  EXPECT_EQ(report_["bytes_equal"], true);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, AKilledAgent) {
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 0, 1, 250));
  ASSERT_NO_FATAL_FAILURE(Drill({"kill-agent", "--target", "n1", "--duration", "4s"}));
  EXPECT_TRUE(report_["incident"].is_null());
  EXPECT_EQ(report_["lost_steps"], 0);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, AKilledCoordinator) {
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 0, 1, 250));
  ASSERT_NO_FATAL_FAILURE(Drill({"kill-coordinator"}));
  EXPECT_TRUE(report_["incident"].is_null());
  EXPECT_EQ(report_["lost_steps"], 0);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, AKilledNode) {
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 0, 1, 150));
  ASSERT_NO_FATAL_FAILURE(Drill({"kill-node", "--target", "n2", "--duration", "4s"}));
  EXPECT_EQ(report_["blamed_nodes"], json({"n2"}));
  EXPECT_EQ(report_["bytes_equal"], true);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, AKilledNodeWithASpare) {
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 1, 1, 250));
  ASSERT_NO_FATAL_FAILURE(Drill({"kill-node", "--target", "n2", "--duration", "8s"}));
  EXPECT_EQ(report_["blamed_nodes"], json({"n2"}));
  EXPECT_EQ(report_["bytes_equal"], true);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, ACorruptShard) {
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 0, 1, 200));
  ASSERT_NO_FATAL_FAILURE(Drill({"corrupt-shard", "--target", "rank", "1", "--seed", "5"}));
  EXPECT_EQ(report_["bytes_equal"], true);
  EXPECT_THAT(report_["what"].get<std::string>(), HasSubstr("rank-1.safetensors is flipped"));
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, AFullDisk) {
  auto disk = SmallDisk::Make(root_, 64ULL << 20);
  if (!disk) GTEST_SKIP() << disk.error().ToString();
  disk_.emplace(std::move(*disk));
  options_.data_dir_of[3] = disk_->path() + "/data";
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 0, 1, 300));
  const Cluster::CliResult refused =
      Cli({"drill", "fill-disk", "--job", "lm", "--target", "n1", "--dry-run"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.errors, HasSubstr("file systems of their own"));
  ASSERT_NO_FATAL_FAILURE(Drill({"fill-disk", "--target", "n3", "--duration", "6s"}));
  EXPECT_FALSE(report_["detect_ms"].is_null());
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, APowerLoss) {
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 0, 1, 150));
  ASSERT_NO_FATAL_FAILURE(Drill({"power-loss"}));
  EXPECT_EQ(report_["bytes_equal"], true);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, EightRanksOnFourNodes) {
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 0, 2, 150));
  ASSERT_NO_FATAL_FAILURE(Drill({"kill-node", "--target", "n1", "--duration", "3s"}));
  EXPECT_EQ(report_["bytes_equal"], true);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, RandomOnesLeaveNothingBehind) {
  const char* wanted = std::getenv("HOLDFAST_DRILLS");
  const int drills = wanted == nullptr ? 3 : std::stoi(wanted);
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 0, 1, 250 * static_cast<uint64_t>(drills)));
  ASSERT_NO_FATAL_FAILURE(Drill({"random", "--seed", "7", "--repeat", std::to_string(drills)}));
  EXPECT_EQ(reports_.size(), static_cast<size_t>(drills));
  for (const json& report : reports_) EXPECT_NE(report["bytes_equal"], false) << report.dump(1);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, AnInterruptedOneCleansUp) {
  ASSERT_NO_FATAL_FAILURE(StartJob(2, 0, 1, 250));
  ProcessOptions command;
  command.argv = {BinaryDir() + "/holdfast",
                  "--endpoint",
                  cluster_->endpoint(),
                  "drill",
                  "slow-rank",
                  "--job",
                  "lm",
                  "--target",
                  "n1",
                  "--yes"};
  command.log_path = root_ + "/drill.log";
  auto drill = Process::Start(command);
  ASSERT_TRUE(drill.has_value());
  const auto hands = [&] {
    int count = 0;
    for (const auto& [pid, name] : Processes()) count += name == "holdfast-fault" ? 1 : 0;
    return count;
  };
  ASSERT_TRUE(WaitUntil([&] { return hands() == 1; }, kTimeout)) << ReadAll(root_ + "/drill.log");
  drill->Signal(SIGINT);
  ASSERT_TRUE(drill->WaitFor(kTimeout).has_value());
  EXPECT_EQ(drill->exit_code(), 130);
  EXPECT_EQ(hands(), 0);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, ASlowRankIsNamed) {
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 0, 1, 300));
  ASSERT_NO_FATAL_FAILURE(Drill({"slow-rank", "--target", "rank", "1", "--duration", "15s"}));
  EXPECT_EQ(report_["blamed_ranks"], json({1}));
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, WhatCannotBeIsRefused) {
  options_.agent_settings_of[1] = {"drills.enabled=false"};
  options_.coordinator_settings = {"drills.enabled=false"};
  options_.disk_every = 1'000'000;
  ASSERT_NO_FATAL_FAILURE(StartJob(2, 0, 1, 2000));
  const auto expect = [&](std::vector<std::string> arguments, int code, const std::string& why) {
    arguments.insert(arguments.begin(), "drill");
    const Cluster::CliResult result = Cli(arguments);
    EXPECT_EQ(result.exit_code, code) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(why));
  };
  expect({"kill-it", "--job", "lm"}, 64, "use one of kill-rank");
  expect({"kill-rank", "--job", "lm", "--objective", "detect=soon"}, 64, "detect=10s");
  expect({"kill-rank", "--job", "lm", "--target", "rank"}, 64, "--target rank 3");
  expect({"kill-rank", "--job", "lm", "--target", "rank", "9"}, 4, "its ranks are 0 to 1");
  expect({"kill-rank", "--job", "lm", "--target", "n9"}, 4, "it runs on n0, n1");
  expect({"kill-agent", "--job", "lm", "--target", "rank", "1"}, 1, "strikes no rank");
  expect({"kill-rank", "--job", "other"}, 4, "no job 'other'");
  expect({"kill-rank", "--job", "lm", "--target", "n1"}, 1, "drills.enabled = true");
  expect({"kill-coordinator", "--job", "lm"}, 1, "drills.enabled = true");
  expect({"power-loss", "--job", "lm"}, 1, "would not survive power-loss");
  const Cluster::CliResult dry =
      Cli({"drill", "kill-rank", "--job", "lm", "--target", "n0", "--dry-run"});
  EXPECT_EQ(dry.exit_code, 0) << dry.errors;
  EXPECT_THAT(dry.out, HasSubstr("rank 0"));
  EXPECT_EQ(CliJson({"incidents", "--job", "lm"})["incidents"], json::array());
}

}  // namespace
}  // namespace holdfast::local
