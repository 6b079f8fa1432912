#pragma once

#include <map>
#include <optional>
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

 private:
  /// The connections of all communicators of a class. Exists while transfers of one of them are
  /// slow.
  struct Pool {
    explicit Pool(size_t cells_max) : matrix(cells_max) {}
    DelayMatrix matrix;
    Clock::TimePoint since;
    bool widespread = false;  // once set, stays set
  };

  void Scan(const Table& table, Clock::TimePoint now, Clock::TimePoint last_operation, bool longer,
            std::vector<Verdict>& verdicts);
  Pool& OpenPool(const CommClass& of, const Table& table, Clock::TimePoint now);

  const DetectorOptions options_;
  std::map<CommClass, Pool> pools_;  // of classes with slow transfers
  ConnectionScan scan_;
  Clock::Duration longest_ended_{0};  // the longest slowdown that has ended
  std::vector<CommunicatorId> wanted_;
};

}  // namespace holdfast::detect
