#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "coordinator/detect/lateness.h"
#include "coordinator/detect/pace.h"
#include "coordinator/detect/steps.h"
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
    uint32_t stages_known = ~0U;  // communicators with sends, when `spans_stages` was found
    bool spans_stages = false;
  };
  /// The connections of all communicators of a class, while the transfers of one are slow or it is
  /// time to compare them.
  struct Pool {
    explicit Pool(size_t cells_max) : matrix(cells_max) {}
    DelayMatrix matrix;
    Clock::TimePoint since;
    bool widespread = false;  // it was once
  };

  void TakeRecord(const Collective& record, Index node, Table& table, Clock::TimePoint now);
  void Finish(const Gathered& operation, Index comm, Table& table);
  static bool Comparable(Func func, const CommInfo& comm);
  bool IsRing(Index comm, const Table& table) const;
  std::vector<bool> Excused(const Gathered& operation, std::span<const uint32_t> members,
                            const Table& table) const;
  void TellSteps(const Table& table);
  void FinishSteps(const Table& table, Clock::TimePoint now);
  void LookForLate(const Table& table, std::vector<Verdict>& verdicts) const;
  /// What the ranks of a role are lastingly late by, and whether they always were.
  struct Lasting {
    uint32_t rank = 0;
    double excess = 0;
    bool always = false;
  };
  /// Communicators whose members may be compared: of one role, one size, and alike or not.
  using Class = std::tuple<Role, bool, size_t>;
  static const Class kStepsClass;
  Class ClassOf(Index comm, const Table& table) const;
  const std::vector<Lasting>& LastingOf(const Class& of, const Table& table) const;
  bool LateBesideOthers(const Track& track, uint32_t rank, const std::vector<Lasting>& lasting,
                        double few, double& z) const;
  static double SlowerZ(const Track& track, const RoleUsage& usage);
  static double LastingZ(const Track& track, const RoleUsage& usage);
  /// `comm`: kNone for the steps.
  std::optional<Verdict> Late(Index comm, uint32_t position, const Table& table) const;
  void LookForTransfers(const Table& table, Clock::TimePoint now, std::vector<Verdict>& verdicts);
  static Verdict SlowTransfer(const std::optional<Transfers::Slow>& slow,
                              const DelayMatrix::Blame& blame, const Pool& pool, const Table& table,
                              Index comm);
  void Scan(const Table& table, Clock::TimePoint now, std::vector<Verdict>& verdicts);
  void AddSums(const PeerSums& sums, Index comm, const Table& table);
  Pool& OpenPool(const Class& of, const Table& table, Clock::TimePoint now);
  void AddPace(std::vector<Verdict>& verdicts) const;

  const DetectorOptions options_;
  std::vector<std::unique_ptr<Watch>> watches_;  // by communicator; made with its first record
  std::map<Class, RoleUsage> usage_;
  mutable std::map<Class, std::vector<Lasting>> lasting_;  // of this look, when somebody needs it
  std::map<Class, Pool> pools_;                            // of classes with slow transfers
  std::map<Class, Pool> scans_;
  Clock::TimePoint scanned_at_;
  std::optional<Edge> scan_found_;  // by the scan before
  std::vector<Verdict> scan_verdicts_;
  bool in_doubt_ = false;  // transfers are slow, or were: what overlaps is another
  Clock::TimePoint in_doubt_until_;
  Clock::Duration healed_{0};        // the longest slowness of transfers that ended by itself
  std::unique_ptr<Steps> steps_;     // made with the first step
  std::vector<uint32_t> everybody_;  // the ranks, when there are steps
  Clock::TimePoint last_operation_;  // that was told
  Pace pace_;
  std::vector<CommId> wanted_;
};

}  // namespace holdfast::detect
