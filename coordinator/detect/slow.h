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

// Finds the cause of slow iterations: stragglers and slow transfers.

namespace holdfast::detect {

/// Returns the robust spread of the ranks' lasting excesses over their peers. Reorders `excesses`.
/// For a small number of ranks, the result is a weighted mean with the usual spread.
double LastingSpread(std::span<double> excesses);

/// Whether a rank that was always late is far behind the few other ranks. Their standard deviation
/// counts here, to which each of them contributes, averaged with the usual one. `few`: above 1 if
/// the ranks form pairs or triples. The others are then compared with other references, and the
/// excess itself must be large.
bool IsFarBehind(double excess, std::span<const double> others, double few);

/// More very late windows than chance explains.
struct FrequentStalls {
  uint32_t very_late = 0;      // windows in which the member was very late
  uint32_t windows = 0;        // windows examined
  uint64_t all_very_late = 0;  // of all members, in all windows
};
/// Returns the member's stalls if they are more frequent than chance explains for any of `tracks`
/// ranks, else nullopt. Tests several lengths of time and several levels of lateness. `members`:
/// all tracks of the member's communicator.
std::optional<FrequentStalls> FindFrequentStalls(const Track& track, std::span<const Track> members,
                                                 const RoleBaseline& baseline, size_t tracks);

/// Whether another member shows at least half of the member's change against its own past. Where
/// members have unequal work, the change is then that of their stage or of the reference.
/// `members`: all tracks of the member's communicator.
bool IsSharedChange(const Track& track, std::span<const Track> members);

/// Whether the member was late before, and another member shows at least half of its change.
/// Members with older GPUs have this in common: how much of their lateness shows depends on how
/// much of a lag carries over, which is an estimate and changes over time.
bool IsSharedDrift(const Track& track, std::span<const Track> members);

class SlownessDetector {
 public:
  explicit SlownessDetector(const DetectorOptions& options) : options_(options) {}

  /// Adds the measurements of an admitted digest.
  void Observe(const Digest& digest, Index node, Table& table, Clock::TimePoint now);
  /// Returns the present stragglers and slow transfers.
  std::vector<Verdict> Evaluate(Table& table, Clock::TimePoint now);
  /// Communicators whose connections should be measured. Set by Evaluate.
  /// Whether transfers are slow at present. Set by Evaluate.
  bool has_slow_transfers() const { return !pools_.empty(); }
  const std::vector<CommunicatorId>& wanted() const { return wanted_; }

 private:
  /// The measurements of one communicator.
  struct Watch {
    Watch(uint32_t members, const DetectorOptions& options)
        : gatherer(members), lateness(members, options), transfers(options) {}
    Gatherer gatherer;
    Lateness lateness;
    TransferMonitor transfers;
    uint32_t stages_known = ~0U;  // communicators with sends when `spans_stages` was computed
    bool spans_stages = false;
  };
  /// The connections of all communicators of a class. Exists while transfers of one of them are
  /// slow, or during a periodic scan.
  struct Pool {
    explicit Pool(size_t cells_max) : matrix(cells_max) {}
    DelayMatrix matrix;
    Clock::TimePoint since;
    bool widespread = false;  // once set, stays set
  };

  void AddRecord(Rank rank, const CollectiveRecord& record, Index node, Table& table,
                 Clock::TimePoint now);
  void FinishOperation(const GatheredOperation& operation, Index comm, Table& table);
  static bool IsComparable(CollectiveKind kind, const CommInfo& comm);
  bool IsRing(Index comm, const Table& table) const;
  std::vector<bool> Excused(const GatheredOperation& operation, std::span<const uint32_t> members,
                            const Table& table) const;
  void StartSteps(const Table& table);
  void FinishSteps(const Table& table, Clock::TimePoint now);
  void FindStragglers(const Table& table, std::vector<Verdict>& verdicts) const;
  /// The lasting lateness of a rank.
  struct LastingExcess {
    uint32_t rank = 0;
    double excess = 0;
  };
  /// Communicators whose members are comparable: same role, same size, and equal work or not. If
  /// roles are not reported, the distance between neighbouring members stands for the role: it is
  /// the same in all groups of one dimension of the job (tensor, pipeline, data).
  using Class = std::tuple<CommunicatorRole, bool, size_t, uint32_t>;
  static const Class kStepsClass;
  Class ClassOf(Index comm, const Table& table) const;
  const std::vector<LastingExcess>& LastingExcesses(const Class& of, const Table& table) const;
  bool IsLaterThanPeers(const Track& track, uint32_t rank,
                        const std::vector<LastingExcess>& lasting, const RoleBaseline& baseline,
                        double few, bool always, double& z) const;
  static double ChangeZ(const Track& track, const RoleBaseline& baseline);
  static double LongChangeZ(const Track& track, const RoleBaseline& baseline);
  bool HasOtherCause(double change_ns) const;
  /// `comm`: kNone for the steps.
  std::optional<Verdict> JudgeMember(Index comm, uint32_t position, const Table& table) const;
  void FindSlowTransfers(const Table& table, Clock::TimePoint now, std::vector<Verdict>& verdicts);
  static Verdict SlowTransferVerdict(const std::optional<TransferMonitor::Slow>& slow,
                                     const DelayMatrix::Blame& blame, const Pool& pool,
                                     const Table& table, Index comm);
  void ScanConnections(const Table& table, Clock::TimePoint now, std::vector<Verdict>& verdicts);
  void AddTransfers(const RankTransfers& transfers, Index comm, const Table& table);
  Pool& OpenPool(const Class& of, const Table& table, Clock::TimePoint now);
  bool HasEnoughToCompare(Clock::TimePoint begin, Clock::TimePoint now, uint64_t operations) const;
  void AddPace(std::vector<Verdict>& verdicts) const;

  const DetectorOptions options_;
  std::vector<std::unique_ptr<Watch>> watches_;  // by communicator; made with its first record
  std::map<Class, RoleBaseline> baselines_;
  mutable std::map<Class, std::vector<LastingExcess>> lasting_;  // cache of one evaluation
  std::map<Class, Pool> pools_;                                  // of classes with slow transfers
  std::map<Class, Pool> scans_;
  Clock::TimePoint scanned_at_;
  std::optional<Edge> scan_found_;  // by the previous scan
  std::vector<Verdict> scan_verdicts_;
  /// Whether transfers are slow or were so recently, which changes how computing and operations
  /// overlap.
  bool transfers_unstable_ = false;
  Clock::TimePoint unstable_until_;
  Clock::Duration longest_ended_{0};  // the longest slowdown of transfers that has ended
  std::unique_ptr<Steps> steps_;      // made with the first step
  std::vector<uint32_t> all_ranks_;   // filled with the first step
  Clock::TimePoint last_operation_;   // when the last record of an operation arrived
  Pace pace_;
  std::vector<CommunicatorId> wanted_;
};

}  // namespace holdfast::detect
