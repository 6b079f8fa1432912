#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "testing/cluster/small_disk.h"
#include "testing/cluster/training.h"
#include "tests/e2e/cluster_test.h"

namespace holdfast::local {

inline constexpr std::chrono::milliseconds kDrillTimeout(180'000);

/// A job of the example trainer under `holdfast run`, as the target of drills.
class DrilledJob : public ClusterTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(root_ + "/meet");
    options_.arena_bytes = 64ULL << 20;
    options_.injectors = true;
  }
  void TearDown() override {
    if (cluster_) {
      static_cast<void>(cluster_->Cli({"stop", "lm", "--now"}).has_value());
      cluster_->KillEverything();
    }
    // Restarted processes are not children of this one, and agents may start new keepers: repeat.
    const auto all_ended = [&] {
      for (const auto& [pid, name] : Processes()) ::kill(pid, SIGKILL);
      return Processes().empty();
    };
    EXPECT_TRUE(WaitUntil(all_ended, std::chrono::milliseconds(20'000)));
    cluster_.reset();
    disk_.reset();
  }

  /// HOLDFAST_RANKS_PER_NODE overrides `ranks_per_node`, for a larger job.
  void StartJob(int nodes, int spares, int ranks_per_node, uint64_t steps, uint64_t sleep_ms = 60) {
    if (const char* wanted = std::getenv("HOLDFAST_RANKS_PER_NODE")) {
      ranks_per_node = std::stoi(wanted);
    }
    options_.nodes = nodes + spares;
    ASSERT_NO_FATAL_FAILURE(StartServers());
    ASSERT_TRUE(WaitUntil([&] { return NodesUp() == nodes + spares; }, kDrillTimeout));
    world_ = nodes * ranks_per_node;
    steps_ = steps;
    std::vector<std::string> run = {"run", "--job", "lm", "--detach", "--grace", "2s"};
    run.insert(run.end(), run_options_.begin(), run_options_.end());
    run.insert(run.end(), {"--nnodes",
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
                           root_ + "/final",
                           "--params",
                           std::to_string(params_)});
    const auto ran = Cli(run);
    ASSERT_EQ(ran.exit_code, 0) << ran.errors;
    ASSERT_TRUE(WaitUntil([&] { return NewestStep() >= 10; }, kDrillTimeout));
  }

  int NodesUp() {
    const nlohmann::json answer = CliJson({"nodes"});
    int up = 0;
    if (!answer.is_object()) return 0;
    for (const nlohmann::json& node : answer["nodes"]) up += node["alive"] == true ? 1 : 0;
    return up;
  }
  uint64_t NewestStep() {
    const nlohmann::json status = CliJson({"status", "lm"});
    if (!status.is_object() || status["jobs"].empty()) return 0;
    return status["jobs"][0]["newest_seen_step"].get<uint64_t>();
  }
  Cluster::CliResult Cli(const std::vector<std::string>& arguments) {
    auto result = cluster_->Cli(arguments, kDrillTimeout);
    return result ? *result : Cluster::CliResult{-1, "", result.error().ToString()};
  }
  nlohmann::json CliJson(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"-o", "json"});
    return nlohmann::json::parse(Cli(arguments).out, nullptr, false);
  }

  /// Runs a drill, which must pass. Sets reports_, and report_ to the first one.
  void Drill(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "drill");
    arguments.insert(arguments.end(), {"--job", "lm", "--yes", "-o", "json"});
    const Cluster::CliResult result = Cli(arguments);
    const nlohmann::json answer = nlohmann::json::parse(result.out, nullptr, false);
    ASSERT_TRUE(answer.is_object()) << result.errors << result.out;
    EXPECT_EQ(result.exit_code, 0) << result.errors << answer.dump(1);
    ASSERT_FALSE(answer["drills"].empty());
    reports_ = answer["drills"];
    report_ = reports_[0];
    std::printf("%s\n", answer.dump(1).c_str());
  }

  /// Interrupts a drill once `begun` returns true. The command must exit with 130; with 1 or 5 as
  /// well if `begun` makes the fault fail, which the command may report before it is interrupted.
  void InterruptDrill(std::vector<std::string> arguments, const std::function<bool()>& begun,
                      bool fault_fails = false) {
    ProcessOptions command;
    command.argv = {BinaryDir() + "/holdfast", "--endpoint", cluster_->endpoint(), "drill"};
    command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
    command.argv.insert(command.argv.end(), {"--job", "lm", "--yes"});
    command.log_path = root_ + "/drill.log";
    auto drill = Process::Start(command);
    ASSERT_TRUE(drill.has_value());
    bool has_begun = false;
    const auto begun_or_ended = [&] {
      has_begun = begun();
      return has_begun || !drill->running();
    };
    static_cast<void>(WaitUntil(begun_or_ended, kDrillTimeout));
    ASSERT_TRUE(has_begun) << ReadAll(command.log_path);
    drill->Signal(SIGINT);
    ASSERT_TRUE(drill->WaitFor(kDrillTimeout).has_value());
    const int code = drill->exit_code().value_or(-1);
    // 5: the fault injector is not reached.
    const bool failed = fault_fails && (code == 1 || code == 5);
    EXPECT_TRUE(code == 130 || failed) << code << ReadAll(command.log_path);
  }

  /// Waits for the end of the job. The final parameters must equal those of an uninterrupted run.
  void ExpectSameEnd() {
    const auto timeout = kDrillTimeout + std::chrono::milliseconds(200) * steps_;
    const auto result = cluster_->Cli({"run", "--follow", "--job", "lm"}, timeout);
    ASSERT_TRUE(result.has_value()) << result.error().ToString();
    ASSERT_EQ(result->exit_code, 0) << result->errors << result->out;
    TrainingOptions options;
    options.world = world_;
    options.steps = steps_;
    options.params = params_;
    const auto expected = UninterruptedParameters(options, timeout);
    ASSERT_TRUE(expected.has_value()) << expected.error().ToString();
    const bool equal = ReadAll(root_ + "/final") == *expected;
    EXPECT_TRUE(equal) << "final parameters differ";
    AddToTable(equal);
    ExpectNothingLeft();
  }

  /// HOLDFAST_DRILL_TABLE=FILE: appends a Markdown table row for each drill and its job's result.
  void AddToTable(bool equal) {
    const char* path = std::getenv("HOLDFAST_DRILL_TABLE");
    if (path == nullptr) return;
    const auto known = [](const nlohmann::json& value, const char* unit = "") {
      return value.is_null() ? "–" : value.dump() + unit;
    };
    std::string lines;
    for (const nlohmann::json& report : reports_) {
      std::string named = "–";
      if (!report["incident_kind"].is_null()) {
        named =
            fmt::format("{}: {}; {}", report["incident_kind"].get<std::string>(),
                        fmt::join(report["blamed_ranks"].get<std::vector<int>>(), ", "),
                        fmt::join(report["blamed_nodes"].get<std::vector<std::string>>(), ", "));
      }
      lines +=
          fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", report["drill"].get<std::string>(),
                      report["target"].get<std::string>(), named, known(report["detect_ms"], " ms"),
                      known(report["recover_ms"], " ms"), known(report["lost_steps"]),
                      equal ? "equal" : "DIFFERENT");
    }
    std::ofstream(path, std::ios::app) << lines;
  }

  /// The processes of this cluster (pid → program), found by their arguments.
  std::map<pid_t, std::string> Processes() const {
    std::map<pid_t, std::string> found;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const std::string arguments = ReadAll(entry.path() / "cmdline");
      if (arguments.find(root_) == std::string::npos || std::stoi(name) == ::getpid()) continue;
      found[std::stoi(name)] =
          std::filesystem::path(arguments.substr(0, arguments.find('\0'))).filename();
    }
    return found;
  }

  /// Returns the process of the fault in force; 0: none is.
  pid_t Fault() const {
    for (const auto& [pid, name] : Processes()) {
      const std::string arguments = ReadAll("/proc/" + std::to_string(pid) + "/cmdline");
      if (arguments.find("--carry-out") != std::string::npos) return pid;
    }
    return 0;
  }

  /// Expects one agent, keeper and fault injector per node, one coordinator with its fault
  /// injector, and no worker, fault in force or file of a drill.
  void ExpectNothingLeft() {
    std::map<std::string, int> wanted = {{"holdfast-fault", cluster_->nodes() + 1},
                                         {"holdfast-agent", cluster_->nodes()},
                                         {"holdfast-keeper", cluster_->nodes()},
                                         {"holdfast-coordinator", 1}};
    std::map<std::string, int> there;
    const auto count = [&] {
      there.clear();
      for (const auto& [pid, name] : Processes()) ++there[name];
      return there == wanted;
    };
    WaitUntil(count, std::chrono::milliseconds(20'000));
    EXPECT_EQ(there, wanted);
    for (const auto& [pid, name] : Processes()) {
      if (name != "holdfast-keeper") continue;
      EXPECT_LE(MemoryFiles(pid), 4 * world_) << "a memory file leaked";
    }
    std::error_code error;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_, error)) {
      EXPECT_THAT(entry.path().filename().string(),
                  ::testing::Not(::testing::HasSubstr(".probe-")));
      EXPECT_NE(entry.path().parent_path().filename().string(), "drills") << entry.path();
    }
    const nlohmann::json versions = CliJson({"versions", "lm"});
    for (const nlohmann::json& version : versions["versions"]) EXPECT_EQ(version["pinned"], false);
  }
  static int MemoryFiles(pid_t pid) {
    int files = 0;
    std::error_code error;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
      const std::string target = std::filesystem::read_symlink(entry.path(), error);
      files += target.find("memfd:") != std::string::npos ? 1 : 0;
    }
    return files;
  }

  std::optional<SmallDisk> disk_;
  int world_ = 0;
  uint64_t steps_ = 0;
  uint64_t params_ = TrainingOptions().params;
  std::vector<std::string> run_options_;  // further options of `holdfast run`
  nlohmann::json reports_;
  nlohmann::json report_;
};

}  // namespace holdfast::local
