#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "coordinator/restart/incidents.h"
#include "coordinator/restart/run_table.h"

namespace holdfast::coord {
using std::chrono::milliseconds;
using std::chrono::seconds;

/// The data of one run, built by hand, for tests of one module. The first launch of job "gpt" runs
/// in incarnation 2 on three nodes, with rank i on node "n<i>". Node "n3" is free.
class RunModuleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    coord::Run& made = table.runs["gpt"];
    made.record.spec.job = "gpt";
    made.record.spec.command = {"train"};
    made.record.spec.nodes = 3;
    made.record.serial = 1;
    made.record.launches = made.record.fruitless = 1;
    made.record.phase = RunPhase::kRunning;
    made.record.saved = true;
    made.incarnation = Incarnation{2};
    made.launched_at = made.not_before = context.at.now;
    table.progress["gpt"].incarnation = Incarnation{2};
    for (uint32_t i = 0; i < 4; ++i) {
      WorkerNode& node = table.nodes["n" + std::to_string(i)];
      node.attached = true;
      node.attach = 100 + i;
      node.agent_start = 1;
      node.worker_address = "10.0.0." + std::to_string(i);
      node.last_contact = node.state_since = context.at.now;
      if (i == 3) continue;
      made.record.nodes.push_back("n" + std::to_string(i));
      WorkerState worker;
      worker.job = "gpt";
      worker.run_id = made.record.run_id();
      worker.rank = Rank{i};
      worker.phase = WorkerPhase::kRunning;
      node.workers.push_back(worker);
    }
  }
  coord::Run& run() { return table.runs.at("gpt"); }
  WorkerNode& node(uint32_t index) { return table.nodes.at("n" + std::to_string(index)); }

  /// Ends the worker of the rank; its node has reported that.
  void End(uint32_t rank, int exit_code, int signal, int64_t ago_ms = 0) {
    WorkerState& worker = node(rank).workers.at(0);
    worker.phase = WorkerPhase::kEnded;
    worker.exit_code = exit_code;
    worker.signal = signal;
    worker.ended_ago_ms = ago_ms;
    run().ended[Rank{rank}] = worker;
  }
  void Lose(uint32_t index) {
    node(index).attached = false;
    node(index).state_since = context.at.now;
    node(index).workers.clear();
  }
  /// Lets time pass, in which the attached nodes report.
  void Pass(Clock::Duration time) {
    context.at.now += time;
    context.at.wall_nanos += time.count();
    for (auto& [name, node] : table.nodes) {
      if (node.attached) node.last_contact = context.at.now;
    }
  }
  Failure FailureOn(uint32_t index, const std::string& own_exit = "") {
    Failure failure;
    failure.kind = "worker died";
    failure.what = "rank " + std::to_string(index) + " ended";
    failure.nodes = {"n" + std::to_string(index)};
    failure.ranks = {Rank{index}};
    failure.healthy_until = context.at.now;
    failure.own_exit = own_exit;
    return failure;
  }

  template <typename E>
  std::vector<E> Added() const {
    std::vector<E> found;
    for (const Effect& effect : effects) {
      if (const auto* one = std::get_if<E>(&effect)) found.push_back(*one);
    }
    return found;
  }
  /// Returns the directives to a node.
  std::vector<SetWorkers> SentTo(uint32_t index) const {
    std::vector<SetWorkers> found;
    for (const Send& send : Added<Send>()) {
      if (send.attach != 100 + index) continue;
      found.push_back(std::get<SetWorkers>(send.directive));
    }
    return found;
  }

  SupervisorOptions options;
  RunTable table;
  std::vector<Effect> effects;
  RunContext context{
      options, {Clock::TimePoint(std::chrono::hours(100)), int64_t{1} << 60}, table, effects};
};

}  // namespace holdfast::coord
