#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/detect/lateness.h"
#include "coordinator/detect/pace.h"
#include "coordinator/detect/transfer.h"

// Why the job is slower than it could be: whose own time, or which transfers.

namespace holdfast::detect {

/// Robust spread of how much later than their peers a role's members are lastingly; reorders. What
/// few members show of it is weighed with what is usual.
double LastingSpread(std::span<double> excesses);

/// So many very late windows that it is no chance.
struct Often {
  uint32_t strong = 0;
  uint32_t of = 0;
  uint64_t all_strong = 0;
};
/// Very late more often than chance gives any of `tracks` ranks: over a short while or a long one,
/// a little or much.
std::optional<Often> OftenVeryLate(const Track& track, const RoleUsage& usage, size_t tracks);

class Slowness {
 public:
  explicit Slowness(const DetectorOptions& options) : options_(options) {}

  /// Takes in the measurements of an admitted digest.
  void Observe(const Digest& digest, Index node, Table& table, Clock::TimePoint now);
  std::vector<Verdict> Evaluate(Table& table, Clock::TimePoint now);
  /// Communicators whose connections should be looked at.
  const std::vector<CommId>& wanted() const { return wanted_; }

 private:
  /// What is watched of one communicator.
  struct Watch {
    Watch(uint32_t members, const DetectorOptions& options)
        : gatherer(members), lateness(members, options), transfers(options) {}
    Gatherer gatherer;
    Lateness lateness;
    Transfers transfers;
    std::unique_ptr<DelayMatrix> matrix;  // while its transfers are slow
    Clock::TimePoint slow_since;
  };

  void TakeRecord(const Collective& record, Index node, Table& table, Clock::TimePoint now);
  void Finish(const Gathered& operation, Index comm, Table& table);
  std::vector<bool> Excused(const Gathered& operation, Index comm, const Table& table) const;
  void LookForLate(const Table& table, std::vector<Verdict>& verdicts) const;
  double LastingSpreadOf(Role role, const Table& table) const;
  static double SlowerZ(const Track& track, const RoleUsage& usage);
  static double LastingZ(const Track& track, const RoleUsage& usage);
  /// `lasting_spread`: of the role; 0 until somebody needs it.
  std::optional<Verdict> Late(Index comm, uint32_t position, double& lasting_spread,
                              const Table& table) const;
  void LookForTransfers(const Table& table, Clock::TimePoint now, std::vector<Verdict>& verdicts);
  Verdict SlowTransfer(const Watch& watch, const Transfers::Slow& slow,
                       const DelayMatrix::Blame& blame, const Table& table, Index comm) const;
  void AddPace(std::vector<Verdict>& verdicts) const;

  const DetectorOptions options_;
  std::vector<std::unique_ptr<Watch>> watches_;  // by communicator; made with its first record
  std::array<RoleUsage, kRoleMax + 1> usage_;
  Pace pace_;
  std::vector<CommId> wanted_;
};

}  // namespace holdfast::detect
