#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "coordinator/detect/scan.h"
#include "coordinator/detect/watch.h"

// Finds slow transfers over all communicators, and the connections at which they are slow.

namespace holdfast::detect {

class SlowTransfers {
 public:
  explicit SlowTransfers(const DetectorOptions& options) : options_(options), scan_(options) {}

  /// Adds what a rank sent to a peer.
  void Add(const RankTransfers& transfers, Index comm, const Watches& watches, const Table& table);
  struct Signals {
    Clock::TimePoint last_operation;  // when the last record of an operation arrived
    bool longer = false;              // iterations are longer than before
    bool probed = false;              // probes between nodes locate the slowness
  };
  /// Returns the present slow transfers.
  std::vector<Verdict> Find(const Watches& watches, const Table& table, Clock::TimePoint now,
                            const Signals& signals);
  /// Communicators whose connections should be measured. Set by Find.
  const std::vector<CommunicatorId>& wanted() const { return wanted_; }
  /// Whether transfers of a communicator are slow at present. Set by Find.
  bool any_slow() const { return !pools_.empty(); }
  /// Whether transfers were slow in the last half hour without a fault. Set by Find.
  bool congested(Clock::TimePoint now) const { return now < congested_until_; }

 private:
  /// The connections of all communicators of a class. Exists while transfers of one of them are
  /// slow.
  struct Pool {
    explicit Pool(size_t cells_max) : matrix(cells_max) {}
    DelayMatrix matrix;
    Clock::TimePoint since;
    bool widespread = false;                  // once set, stays set
    std::optional<DelayMatrix::Blame> blame;  // what explains the slowdown
  };
  /// A class with slow transfers.
  struct SlowClass {
    Index comm = kNone;  // the communicator with the clearest slowdown
    TransferMonitor::Slow slow;
    uint32_t communicators = 0;
  };
  struct Present {
    std::map<CommClass, SlowClass> classes;
    std::set<CommClass> slowing;  // also those whose transfers are not slow for long
    uint32_t watched = 0;         // communicators
    uint32_t slow = 0;            // communicators
    bool common_rank = false;     // some rank is a member of all slow communicators
  };

  void LearnFromEnded(const Watches& watches, Clock::TimePoint now);
  Present PresentOf(const Watches& watches, const Table& table) const;
  void Measure(const Present& present, const Watches& watches, const Table& table,
               Clock::TimePoint now);
  bool HaveNoCommonEnd() const;
  bool AreMeasured(const std::set<CommClass>& classes) const;
  std::optional<Verdict> Judge(const CommClass& of, const Present& present, const Table& table,
                               Clock::TimePoint now, bool probed) const;
  void Scan(const Table& table, Clock::TimePoint now, const ConnectionScan::Signals& signals,
            std::vector<Verdict>& verdicts);
  Pool& OpenPool(const CommClass& of, const Table& table, Clock::TimePoint now);

  const DetectorOptions options_;
  std::map<CommClass, Pool> pools_;  // of classes with slow transfers
  ConnectionScan scan_;
  uint64_t ended_ = 0;                // slowdowns that have ended
  Clock::Duration longest_ended_{0};  // the longest of them
  Clock::TimePoint congested_until_;
  std::vector<CommunicatorId> wanted_;
};

}  // namespace holdfast::detect
