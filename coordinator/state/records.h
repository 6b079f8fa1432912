#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "coordinator/state/identity_records.h"
#include "coordinator/state/run_records.h"
#include "storage/parity/group_plan.h"

// The coordinator's persistent records. They hold decisions only: which replicas exist is never
// stored, since agents report that. docs/formats/metadata.md describes the stored form.

namespace holdfast::coord {

struct JobRecord {
  std::string job;
  uint32_t uid = 0;  // user of the first join; no other user may join
  Incarnation incarnation;
  /// Nodes whose ranks joined the current incarnation, and nodes of earlier incarnations that may
  /// still hold replicas. A restarted coordinator waits for all of them before it decides a
  /// restore.
  std::vector<std::string> nodes_now;
  std::vector<std::string> nodes_before;
  /// A version of the current incarnation at or below this step that has no record never gets one.
  Step abort_floor;
  /// Every rank of the current incarnation ended with a goodbye, or the job's run ended.
  bool finished = false;
  /// How many versions stay on disk. With `keep_last` 0 the coordinator's values apply for both.
  uint64_t keep_last = 0;
  uint64_t keep_every = 0;
  /// Replicas of incarnations up to this one are removed wherever they are found. If this equals
  /// `incarnation`, the job is forgotten, and the record stays until all `nodes_before` have
  /// removed their replicas.
  Incarnation forgotten_upto;
  int64_t ended_wall_nanos = 0;  // for display
  bool operator==(const JobRecord&) const = default;
};

/// A node of a parity group, and the ranks whose shards form its node image.
struct PlannedMember {
  std::string node;
  std::string domain;           // failure domain of the node; empty: unknown
  std::vector<PlanRank> ranks;  // ascending
  /// The node that replaced `node` after a permanent loss; empty: `node` itself is the member.
  std::string home = {};
  /// The node that is the member now.
  const std::string& place() const { return home.empty() ? node : home; }
  bool operator==(const PlannedMember&) const = default;
};

struct PlannedGroup {
  uint32_t parity = 0;                 // members that may be lost
  std::vector<PlannedMember> members;  // by position in the stripes
  bool operator==(const PlannedGroup&) const = default;
};

/// The parity groups of an incarnation. A member's number is its index in this order over all
/// groups. Empty: no parity.
using PeerPlan = std::vector<PlannedGroup>;

enum class Decision : uint8_t { kNone = 0, kFresh = 1, kVersion = 2 };

/// One incarnation of a job: the run that opened it and the version that it restored. Kept until
/// the job is forgotten.
struct LineageRecord {
  std::string job;
  Incarnation incarnation;
  std::string run_id;
  uint32_t world = 0;
  Decision decision = Decision::kNone;
  VersionId restored;  // with Decision::kVersion
  /// Planned once, when all ranks have joined. Erased when no version of the incarnation is left,
  /// unless this is the newest plan of the job.
  PeerPlan peers = {};
  LifeId life = {};  // life of the store that opened the incarnation; 0: unknown
  bool operator==(const LineageRecord&) const = default;
};

enum class Phase : uint8_t {
  kPending = 0,    // never stored
  kCommitted = 1,  // complete at `tiers`
  kAborted = 2,    // a rank's shard failed: the version will never be complete
  kRemoving = 3,   // tombstone: agents delete it
};

/// Bytes [first, last) of a tensor.
struct TensorBytes {
  std::string tensor;
  uint64_t first = 0;
  uint64_t last = 0;
  auto operator<=>(const TensorBytes&) const = default;
};

/// Bytes that should be equal on several ranks differ. A restore of the version restores the
/// differences too.
struct Dispute {
  TensorBytes bytes;
  std::vector<uint32_t> odd;     // ranks that differ from the majority; all ranks if there is none
  std::vector<uint32_t> others;  // the majority
  bool operator==(const Dispute&) const = default;
};
/// Returns for example "'model.weight', bytes 0 to 4096: rank 1 differs from ranks 0, 2".
std::string ToString(const Dispute& dispute);

/// The outcome of `holdfast verify` for one version. The numbers are numbers of replicas of shards.
struct Verification {
  int64_t wall_nanos = 0;  // when it was recorded; for display
  bool deep = false;       // every byte was read; false: only the structure was checked
  uint32_t ok = 0;
  uint32_t damaged = 0;
  uint32_t missing = 0;
  uint32_t unchecked = 0;
  uint32_t left_out = 0;  // not in the sample
  bool operator==(const Verification&) const = default;
};

struct VersionRecord {
  std::string job;
  VersionId version;
  uint32_t world = 0;
  Phase phase = Phase::kCommitted;
  uint32_t tiers = 0;         // mask of TierBit: where the version is committed
  uint32_t failed_tiers = 0;  // mask of TierBit: where a shard failed
  bool pinned = false;
  int64_t wall_nanos = 0;  // of the first commit; for display
  uint64_t bytes = 0;
  std::vector<uint64_t> digests;  // by rank; empty unless committed
  /// By member number in the incarnation's plan; empty unless committed at peer or adopted. 0: not
  /// known.
  std::vector<uint64_t> parity_digests = {};
  LifeId adopted_from = {};  // 0: the version is of this life
  std::vector<Dispute> disputes = {};
  std::optional<Verification> verification = {};  // the last one
  /// Of a committed version: CommitDigest(digests); 0: an older coordinator wrote the record.
  uint64_t commit_digest = 0;
  bool operator==(const VersionRecord&) const = default;
};

/// All records of one cluster.
struct Records {
  std::vector<JobRecord> jobs;
  std::vector<LineageRecord> lineages;
  std::vector<VersionRecord> versions;
  std::vector<RunRecord> runs = {};
  std::vector<IncidentRecord> incidents = {};
  std::vector<QuarantineRecord> quarantine = {};
  std::vector<DrainRecord> drains = {};
  std::vector<SuspectRecord> suspects = {};
  std::vector<TokenRecord> tokens = {};
  std::vector<IdentityRecord> identities = {};
};

}  // namespace holdfast::coord
