#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "coordinator/detect/pace.h"
#include "coordinator/detect/slow_transfers.h"
#include "coordinator/detect/step_ends.h"
#include "coordinator/detect/steps.h"
#include "coordinator/detect/watch.h"

// Finds the cause of slow iterations: stragglers and slow transfers.

namespace holdfast::detect {

class SlownessDetector {
 public:
  explicit SlownessDetector(const DetectorOptions& options)
      : options_(options), transfers_(options), step_ends_(options) {}

  /// Adds the measurements of an admitted digest.
  void Observe(const Digest& digest, Index node, Table& table, Clock::TimePoint now);
  /// Returns the present stragglers and slow transfers. `probed`: whether probes between nodes
  /// locate the slowness of transfers.
  std::vector<Verdict> Evaluate(Table& table, Clock::TimePoint now, bool probed);
  /// Communicators whose connections should be measured. Set by Evaluate.
  const std::vector<CommunicatorId>& wanted() const { return transfers_.wanted(); }
  /// Whether transfers are slow at present. Set by Evaluate.
  bool has_slow_transfers() const { return transfers_.any_slow(); }

 private:
  void AddRecord(Rank rank, const CollectiveRecord& record, Index node, Table& table,
                 Clock::TimePoint now);
  void FinishOperation(const GatheredOperation& operation, Index comm, Table& table);
  static bool IsComparable(CollectiveKind kind, const CommInfo& comm);
  bool IsRing(Index comm, const Table& table) const;
  std::vector<bool> Excused(const GatheredOperation& operation, std::span<const uint32_t> members,
                            const Table& table) const;
  void StartSteps(const Table& table);
  void FinishSteps(const Table& table, Clock::TimePoint now);
  void AddStepEnds(const Table& table, std::vector<Verdict>& verdicts) const;
  void HoldBack(std::vector<Verdict>& verdicts, Clock::TimePoint now);
  void AddPace(std::vector<Verdict>& verdicts) const;

  const DetectorOptions options_;
  Watches watches_;
  std::map<CommClass, RoleBaseline> baselines_;
  SlowTransfers transfers_;
  /// Until then, transfers count as unstable.
  Clock::TimePoint unstable_until_;
  std::unique_ptr<Steps> steps_;     // made with the first step
  std::vector<uint32_t> all_ranks_;  // filled with the first step
  StepEnds step_ends_;
  std::map<uint32_t, Clock::TimePoint> late_since_;  // by rank, of the stragglers at present
  Clock::TimePoint last_operation_;                  // when the last record of an operation arrived
  Pace pace_;
};

}  // namespace holdfast::detect
