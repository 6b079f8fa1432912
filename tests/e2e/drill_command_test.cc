// `holdfast drill` against real processes. The command injects, measures and judges each failure.
// The job ends with the parameters of an uninterrupted run, and nothing is left behind.

#include <csignal>

#include "tests/e2e/drilled_job.h"

namespace holdfast::local {
namespace {
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

using DrillCommandTest = DrilledJob;

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
  EXPECT_LE(report_["detect_ms"], 10'000);
  // A rank that stops in a collective looks like a network fault: then the nodes are named.
  EXPECT_THAT(report_["blamed_ranks"].dump() + report_["blamed_nodes"].dump(), HasSubstr("3"));
  EXPECT_EQ(report_["bytes_equal"], true);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, AKilledAgent) {
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 0, 1, 250));
  ASSERT_NO_FATAL_FAILURE(Drill({"kill-agent", "--target", "n1"}));
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

TEST_F(DrillCommandTest, ALostStore) {
  options_.keep_last = 20;  // so that retention removes no version before the comparison
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 0, 1, 200));
  ASSERT_NO_FATAL_FAILURE(Drill({"lose-store"}));
  int lost = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root_ + "/coordinator")) {
    lost += entry.path().filename().string().starts_with("metadata.lost-drill-") ? 1 : 0;
  }
  EXPECT_EQ(lost, 1) << "the old store is not there";
  EXPECT_EQ(report_["bytes_equal"], true);
  EXPECT_FALSE(report_["survived"].empty());
  EXPECT_GT(report_["recover_ms"], report_["restore_ms"]);
  EXPECT_THAT(report_["what"].get<std::string>(), HasSubstr("metadata.lost-drill-"));
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, AKilledNode) {
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 0, 1, 150));
  ASSERT_NO_FATAL_FAILURE(Drill({"kill-node", "--target", "n2", "--duration", "4s"}));
  EXPECT_EQ(report_["blamed_nodes"], json({"n2"}));
  EXPECT_LE(report_["detect_ms"], 5'000);
  EXPECT_EQ(report_["bytes_equal"], true);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, AKilledNodeWithASpare) {
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 1, 1, 250));
  ASSERT_NO_FATAL_FAILURE(Drill({"kill-node", "--target", "n2", "--duration", "8s"}));
  EXPECT_EQ(report_["blamed_nodes"], json({"n2"}));
  EXPECT_LE(report_["detect_ms"], 5'000);
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
  EXPECT_THAT(refused.errors, HasSubstr("separate file systems"));
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

TEST_F(DrillCommandTest, RandomDrillsLeaveNothingBehind) {
  const char* wanted = std::getenv("HOLDFAST_DRILLS");
  const int drills = wanted == nullptr ? 3 : std::stoi(wanted);
  const char* seed = std::getenv("HOLDFAST_SEED");
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 0, 1, 150 * static_cast<uint64_t>(drills + 1)));
  ASSERT_NO_FATAL_FAILURE(Drill(
      {"random", "--seed", seed == nullptr ? "7" : seed, "--repeat", std::to_string(drills)}));
  EXPECT_EQ(reports_.size(), static_cast<size_t>(drills));
  for (const json& report : reports_) EXPECT_NE(report["bytes_equal"], false) << report.dump(1);
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, AnInterruptedDrillCleansUp) {
  ASSERT_NO_FATAL_FAILURE(StartJob(2, 0, 1, 250));
  ASSERT_NO_FATAL_FAILURE(
      InterruptDrill({"slow-rank", "--target", "n1"}, [&] { return Fault() != 0; }));
  EXPECT_EQ(Fault(), 0);
  // An interrupted series still reports its finished drills.
  const std::string log = root_ + "/drill.log";
  std::filesystem::remove(log);
  ASSERT_NO_FATAL_FAILURE(
      InterruptDrill({"kill-rank", "--target", "rank", "1", "--repeat", "50"},
                     [&] { return ReadAll(log).find("drill 2 of 50") != std::string::npos; }));
  EXPECT_THAT(ReadAll(log), HasSubstr("drill 2 of 50: interrupted"));
  EXPECT_THAT(ReadAll(log), ::testing::ContainsRegex("DRILL.*RESULT\nkill-rank .*passed"));
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

/// The process that carries out the fault, and its injector, are killed in the middle of it.
TEST_F(DrillCommandTest, AFaultEndsAfterItsProcessesWereKilled) {
  ASSERT_NO_FATAL_FAILURE(StartJob(2, 0, 1, 350));
  const auto is_stopped = [&] {
    for (const auto& [pid, name] : Processes()) {
      const std::string stat = ReadAll("/proc/" + std::to_string(pid) + "/stat");
      if (name == "holdfast-charlm" && stat.find(") T ") != std::string::npos) return true;
    }
    return false;
  };
  const auto hang = [&](const std::function<void()>& then) {
    // The hang before may have caused a restart: a drill needs running ranks.
    const uint64_t step = NewestStep();
    ASSERT_TRUE(WaitUntil([&] { return NewestStep() > step; }, kDrillTimeout));
    ASSERT_NO_FATAL_FAILURE(InterruptDrill(
        {"hang-rank", "--target", "n1", "--duration", "10m"},
        [&] {
          if (Fault() == 0 || !is_stopped()) return false;
          then();
          return true;
        },
        true));
    EXPECT_TRUE(WaitUntil([&] { return Fault() == 0 && !is_stopped(); }, kDrillTimeout));
  };
  ASSERT_NO_FATAL_FAILURE(hang([&] {
    ::kill(Fault(), SIGKILL);
    EXPECT_TRUE(WaitUntil([&] { return !is_stopped(); }, kDrillTimeout));
  }));
  ASSERT_NO_FATAL_FAILURE(hang([&] {
    cluster_->injector(1).Kill();
    ::kill(Fault(), SIGKILL);
    EXPECT_TRUE(is_stopped());
    EXPECT_TRUE(cluster_->StartInjector(1).ok());
  }));
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, ASlowRankIsNamed) {
  ASSERT_NO_FATAL_FAILURE(StartJob(4, 0, 1, 300));
  ASSERT_NO_FATAL_FAILURE(Drill({"slow-rank", "--target", "rank", "1", "--duration", "15s"}));
  EXPECT_EQ(report_["blamed_ranks"], json({1}));
  ASSERT_NO_FATAL_FAILURE(ExpectSameEnd());
}

TEST_F(DrillCommandTest, ImpossibleDrillsAreRefused) {
  options_.injector_settings_of[1] = {"drills.enabled=false"};
  options_.coordinator_injector_settings = {"drills.enabled=false"};
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
  expect({"kill-rank", "--job", "lm", "--target", "rank", "9"}, 4,
         "its ranks are 0 to " + std::to_string(world_ - 1));
  expect({"kill-rank", "--job", "lm", "--target", "n9"}, 4, "it runs on n0, n1");
  expect({"kill-agent", "--job", "lm", "--target", "rank", "1"}, 1, "cannot be a rank");
  expect({"kill-node", "--job", "lm", "--target", "n0,n1"}, 1, "only partition and slow-link");
  expect({"partition", "--job", "lm", "--target", "n0,n9"}, 4, "no node 'n9'");
  expect({"kill-rank", "--job", "other"}, 4, "no job 'other'");
  expect({"kill-rank", "--job", "lm", "--target", "n1"}, 1, "drills.enabled = true");
  expect({"partition", "--job", "lm", "--target", "n0"}, 1, "no link to cut");
  expect({"slow-link", "--job", "lm", "--target", "n0"}, 1, "peers.listen");
  expect({"slow-link", "--job", "lm", "--rate", "fast"}, 64, "--rate");
  expect({"kill-coordinator", "--job", "lm"}, 1, "drills.enabled = true");
  expect({"lose-store", "--job", "lm", "--target", "n0"}, 1, "lose-store takes no target");
  expect({"power-loss", "--job", "lm"}, 1, "would not survive power-loss");
  expect({"kill-rank", "--job", "lm", "--injector", "n1"}, 64, "NODE=ADDRESS");
  // A node without an injector, and one whose address is that of another node's.
  const std::string n0 = "n0=unix:" + cluster_->NodeDir(0);
  expect({"kill-rank", "--job", "lm", "--target", "n0", "--injector", n0 + "/absent.sock"}, 5,
         "no fault injector answers on node n0");
  expect({"kill-rank", "--job", "lm", "--target", "n0", "--injector", n0 + "/../n1/fault.sock"}, 1,
         "serves node 'n1' and not 'n0'");
  const Cluster::CliResult dry =
      Cli({"drill", "kill-rank", "--job", "lm", "--target", "n0", "--dry-run"});
  EXPECT_EQ(dry.exit_code, 0) << dry.errors;
  EXPECT_THAT(dry.out, HasSubstr("on n0"));
  const json answer = CliJson({"incidents", "--job", "lm"});
  for (const json& incident : answer["incidents"]) {
    // On a busy machine a slow rank may be noted.
    EXPECT_EQ(incident["state"], "noted") << incident.dump(1);
  }
}

}  // namespace
}  // namespace holdfast::local
