#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/state/state.h"

namespace holdfast::bench {

/// A job of many nodes, whose events are applied to the coordinator's rules alone: without gRPC and
/// without a store. Each call makes the events of all nodes, one after another.
class StateLoad {
 public:
  /// With `parity` the nodes are in parity groups.
  StateLoad(uint32_t nodes, uint32_t ranks_per_node, bool parity);

  void Attach();
  /// All ranks join with the run ID.
  void Join(const std::string& run);
  /// Every node reports its shards of the step in memory, then its parity, and then both on disk.
  void Save(uint64_t step);
  /// The nodes answer the directives to prepare shards.
  void Prepare();
  /// All ranks request a restore.
  void RequestRestore();
  /// The nodes report that all ranks run.
  void Run();
  /// The nodes report that no rank runs any more.
  void End();
  /// All nodes are lost.
  void Lose();
  /// The coordinator starts again, from its records.
  void Restart();
  void Pass(std::chrono::milliseconds time);

  const coord::State& state() const { return *state_; }
  uint32_t world() const { return nodes_ * ranks_per_node_; }
  /// How many ranks joined or got a version since the last call.
  uint32_t TakeSuccesses() { return std::exchange(successes_, 0); }

 private:
  void Apply(const coord::Event& event);
  void Take(coord::Effect effect);
  void Report(uint32_t node, std::vector<StoredReplica> replicas,
              std::vector<Prepared> prepared = {});
  void Add(uint32_t node, VersionId version, Rank rank, Tier tier,
           std::vector<StoredReplica>& replicas);
  std::string NameOf(uint32_t node) const { return "node-" + std::to_string(node); }

  const uint32_t nodes_;
  const uint32_t ranks_per_node_;
  const bool parity_;
  coord::StateOptions options_;
  coord::Instant at_{Clock::TimePoint(std::chrono::hours(1)), 1000};
  std::unique_ptr<coord::State> state_;
  uint64_t next_ = 0;
  uint64_t events_ = 0;
  Incarnation incarnation_;
  std::vector<std::vector<LocalRank>> ranks_;      // by node
  std::vector<std::vector<StoredReplica>> held_;   // by node
  std::vector<std::vector<PrepareShard>> orders_;  // by node
  std::vector<uint32_t> member_numbers_;           // by node: its number in the parity groups
  std::map<coord::AttachId, uint32_t> attached_;
  coord::JobRecord job_;
  std::map<Incarnation, coord::LineageRecord> lineages_;
  std::map<VersionId, coord::VersionRecord> versions_;
  uint32_t successes_ = 0;
};

}  // namespace holdfast::bench
