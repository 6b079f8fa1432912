#pragma once

#include <map>
#include <optional>
#include <vector>

#include "coordinator/detect/watch.h"

// Finds slow transfers over all communicators: those that became slower, and, from time to time,
// those that are slower than other connections.

namespace holdfast::detect {

class SlowTransfers {
 public:
  explicit SlowTransfers(const DetectorOptions& options) : options_(options) {}

  /// Adds what a rank sent to a peer.
  void Add(const RankTransfers& transfers, Index comm, const Watches& watches, const Table& table);
  /// Returns the present slow transfers. `last_operation`: when the last record of an operation
  /// arrived.
  std::vector<Verdict> Find(const Watches& watches, const Table& table, Clock::TimePoint now,
                            Clock::TimePoint last_operation);
  /// Communicators whose connections should be measured. Set by Find.
  const std::vector<CommunicatorId>& wanted() const { return wanted_; }

 private:
  /// The connections of all communicators of a class. Exists while transfers of one of them are
  /// slow, or during a periodic scan.
  struct Pool {
    explicit Pool(size_t cells_max) : matrix(cells_max) {}
    DelayMatrix matrix;
    Clock::TimePoint since;
    bool widespread = false;  // once set, stays set
  };

  static Verdict VerdictOf(const std::optional<TransferMonitor::Slow>& slow,
                           const DelayMatrix::Blame& blame, const Pool& pool, const Table& table,
                           Index comm);
  void Scan(const Table& table, Clock::TimePoint now, Clock::TimePoint last_operation,
            std::vector<Verdict>& verdicts);
  Pool& OpenPool(const CommClass& of, const Table& table, Clock::TimePoint now);
  bool HasEnoughToCompare(Clock::TimePoint begin, Clock::TimePoint now,
                          Clock::TimePoint last_operation, uint64_t operations) const;

  const DetectorOptions options_;
  std::map<CommClass, Pool> pools_;  // of classes with slow transfers
  std::map<CommClass, Pool> scans_;
  Clock::TimePoint scanned_at_;
  std::optional<Edge> scan_found_;  // by the previous scan
  std::vector<Verdict> scan_verdicts_;
  Clock::Duration longest_ended_{0};  // the longest slowdown that has ended
  std::vector<CommunicatorId> wanted_;
};

}  // namespace holdfast::detect
