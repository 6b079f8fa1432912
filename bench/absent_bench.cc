// holdfast-absent-bench [--seconds S]
//
// The example trainer saves every step on three nodes, first with three coordinators on an etcd of
// three members, and then for S seconds while all of these are stopped. Prints one JSON object per
// line.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/bench.h"
#include "testing/cluster/cluster.h"
#include "testing/cluster/training.h"
#include "testing/etcd/members.h"

namespace holdfast::bench {
namespace {
using std::chrono::seconds;
constexpr int kNodes = 3;
constexpr int kCoordinators = 3;
constexpr seconds kPastTheLease(5);

/// The servers and the job. The destructor ends them and removes their files.
class AbsentCoordinators {
 public:
  AbsentCoordinators() = default;
  ~AbsentCoordinators() {
    training_.reset();
    cluster_.reset();
    etcd_.reset();
    std::error_code ignored;
    if (!options_.root.empty()) std::filesystem::remove_all(options_.root, ignored);
  }
  AbsentCoordinators(const AbsentCoordinators&) = delete;
  AbsentCoordinators& operator=(const AbsentCoordinators&) = delete;

  Status Start() {
    if (!local::HasEtcd()) return UnavailableError(local::kNoEtcd);
    HOLDFAST_ASSIGN_OR_RETURN(options_.root, local::MakeTempDir("hf-bench"));
    etcd_.emplace(options_.root + "/etcd");
    HOLDFAST_RETURN_IF_ERROR(etcd_->Start());
    options_.nodes = kNodes;
    options_.coordinators = kCoordinators;
    options_.disk_every = 1'000'000'000;
    options_.coordinator_settings = {"store=" + etcd_->url(), "peers.enabled=true",
                                     fmt::format("peers.group_nodes={}", kNodes)};
    cluster_.emplace(options_);
    HOLDFAST_RETURN_IF_ERROR(cluster_->Start());
    local::TrainingOptions job;
    job.world = kNodes;
    job.steps = 1'000'000'000;
    job.params = 200'000;
    training_.emplace(&*cluster_, job);
    HOLDFAST_RETURN_IF_ERROR(training_->Start());
    if (training_->AwaitStep(10, seconds(60))) return Status::Ok();
    return InternalError("the job does not train:\n" + training_->LogTail());
  }
  /// Stops all coordinators and all members of etcd, or lets them run again.
  void Signal(int signal) {
    for (int i = 0; i < kCoordinators; ++i) cluster_->coordinator(i).Signal(signal);
    etcd_->Signal(signal);
  }
  /// Returns the times of the steps that rank 0 finishes meanwhile.
  Result<std::vector<double>> StepsOf(seconds time) {
    const size_t first = training_->step_ms().size();
    if (local::WaitUntil([this] { return training_->AnyEnded(); }, time)) {
      return Fail(InternalError("the job ended:\n" + training_->LogTail()));
    }
    const std::vector<double>& all = training_->step_ms();
    if (all.size() < first + 2) return Fail(InternalError("the job made no step"));
    return std::vector<double>(all.begin() + static_cast<std::ptrdiff_t>(first), all.end());
  }
  /// Waits until a version newer than all of the absence is committed. Returns the seconds.
  Result<double> UntilCommitted() {
    const uint64_t step = training_->newest_step();
    const auto begin = std::chrono::steady_clock::now();
    const auto committed = [&] {
      const auto shown = cluster_->Cli({"versions", "charlm", "-o", "json"});
      return shown && NewestStep(shown->out) > step;
    };
    if (!local::WaitUntil(committed, seconds(60))) {
      return Fail(InternalError("no version is committed after the absence"));
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  static uint64_t NewestStep(const std::string& versions) {
    const auto document = nlohmann::json::parse(versions, nullptr, false);
    uint64_t newest = 0;
    if (!document.is_object() || !document.contains("versions")) return newest;
    for (const auto& version : document["versions"]) {
      if (version.value("state", "") != "committed") continue;
      const std::string name = version.value("version", "");
      newest = std::max<uint64_t>(newest, std::stoull("0" + name.substr(name.find('-') + 1)));
    }
    return newest;
  }

  local::ClusterOptions options_;
  std::optional<local::EtcdMembers> etcd_;
  std::optional<local::Cluster> cluster_;
  std::optional<local::Training> training_;
};

Status Measure(seconds absent) {
  AbsentCoordinators servers;
  HOLDFAST_RETURN_IF_ERROR(servers.Start());
  const seconds present = std::max(seconds(2), absent / 8);
  HOLDFAST_ASSIGN_OR_RETURN(const std::vector<double> earlier, servers.StepsOf(present));
  HOLDFAST_ASSIGN_OR_RETURN(const std::vector<double> later, servers.StepsOf(present));
  servers.Signal(SIGSTOP);
  if (const auto past = servers.StepsOf(kPastTheLease); !past) return past.error();
  HOLDFAST_ASSIGN_OR_RETURN(const std::vector<double> without, servers.StepsOf(absent));
  servers.Signal(SIGCONT);
  HOLDFAST_ASSIGN_OR_RETURN(const double committed, servers.UntilCommitted());

  const double with = (Median(earlier) + Median(later)) / 2;
  const std::string note = fmt::format(
      "{} steps in {} s without coordinators and etcd ÷ with them, medians; noise {:.1f} %; a "
      "newer version is committed {:.1f} s after their return",
      without.size(), absent.count(), 100 * std::abs(Median(earlier) / Median(later) - 1),
      committed);
  const nlohmann::json row = {{"name", "absent_coordinator"},
                              {"ratio", Median(without) / with},
                              {"ours", Median(without)},
                              {"reference", with},
                              {"unit", "ms/step"},
                              {"goal", "<=1.01"},
                              {"note", note}};
  std::printf("%s\n", row.dump().c_str());
  return Status::Ok();
}
}  // namespace
}  // namespace holdfast::bench

int main(int argc, char** argv) {
  using namespace holdfast;
  CLI::App app("The pace of a training while no coordinator runs");
  uint32_t absent = 600;
  app.add_option("--seconds", absent, "how long the coordinators and etcd are stopped")
      ->check(CLI::Range(2, 86'400))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const Status status = bench::Measure(std::chrono::seconds(absent));
  if (status.ok()) return 0;
  std::fprintf(stderr, "holdfast-absent-bench: %s\n", status.ToString().c_str());
  return 1;
}
