#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/api/types.h"
#include "coordinator/state/run_records.h"
#include "storage/base/ids.h"

// What the coordinator persists: decisions, never holdings. docs/formats/metadata.md describes the
// stored form.

namespace holdfast::coord {

struct JobRecord {
  std::string job;
  uint32_t uid = 0;  // of the first join; nobody else may join
  Incarnation incarnation;
  /// Nodes whose ranks joined the current incarnation, and those of the ones before that may still
  /// hold something: a restarted coordinator waits for them before it decides a restore.
  std::vector<std::string> nodes_now;
  std::vector<std::string> nodes_before;
  /// Versions of the current incarnation up to this step that have no record never will have one.
  Step abort_floor;
  /// Every rank of the current incarnation said goodbye, or its run ended.
  bool finished = false;
  /// Versions kept on disk; `keep_last` 0: the coordinator's rule for both.
  uint64_t keep_last = 0;
  uint64_t keep_every = 0;
  /// Whatever turns up of incarnations up to this is removed. Equal to `incarnation`: the job is
  /// forgotten, and the record waits for `nodes_before` to drop what they have.
  Incarnation forgotten_upto;
  int64_t ended_wall_nanos = 0;  // for display
  bool operator==(const JobRecord&) const = default;
};

/// A node of a parity group and what its image is made of.
struct PlannedMember {
  std::string node;
  std::string domain;           // whose failure takes it along with others; empty: unknown
  std::vector<PeerRank> ranks;  // ascending
  /// The node that has taken the place of `node`, which is gone for good; empty: `node` itself.
  std::string home = {};
  const std::string& place() const { return home.empty() ? node : home; }
  bool operator==(const PlannedMember&) const = default;
};

struct PlannedGroup {
  uint32_t parity = 0;                 // members whose loss it survives
  std::vector<PlannedMember> members;  // by position in the stripes
  bool operator==(const PlannedGroup&) const = default;
};

/// Which nodes of an incarnation keep parity for each other. Nodes are numbered in this order over
/// all groups. Empty: no parity.
using PeerPlan = std::vector<PlannedGroup>;

enum class Decision : uint8_t { kNone = 0, kFresh = 1, kVersion = 2 };

/// One start of a job, kept for ever: which run opened it and what it restored.
struct LineageRecord {
  std::string job;
  Incarnation incarnation;
  std::string run_id;
  uint32_t world = 0;
  Decision decision = Decision::kNone;
  VersionId restored;  // with Decision::kVersion
  /// Made once, when all ranks have joined; given up when nothing of the incarnation is left.
  PeerPlan peers = {};
  LifeId life = {};  // of the store, in which it began; 0: not known
  bool operator==(const LineageRecord&) const = default;
};

enum class Phase : uint8_t {
  kPending = 0,    // never stored
  kCommitted = 1,  // complete at `tiers`
  kAborted = 2,    // a rank said that it will never be complete
  kRemoving = 3,   // tombstone: agents delete it
};

/// Bytes [first, last) of a tensor.
struct TensorBytes {
  std::string tensor;
  uint64_t first = 0;
  uint64_t last = 0;
  auto operator<=>(const TensorBytes&) const = default;
};

/// Ranks that should hold the same bytes hold different ones: restored, they are a mixture.
struct Dispute {
  TensorBytes bytes;
  std::vector<uint32_t> odd;     // ranks that differ from the majority; without one, all of them
  std::vector<uint32_t> others;  // the majority
  bool operator==(const Dispute&) const = default;
};
/// "'model.weight', bytes 0 to 4096: rank 1 differs from ranks 0, 2"
std::string ToString(const Dispute& dispute);

struct VersionRecord {
  std::string job;
  VersionId version;
  uint32_t world = 0;
  Phase phase = Phase::kCommitted;
  uint32_t tiers = 0;         // mask of TierBit: where it is committed
  uint32_t failed_tiers = 0;  // mask of TierBit: where it will never be
  bool pinned = false;
  int64_t wall_nanos = 0;  // of the first commit; for display
  uint64_t bytes = 0;
  std::vector<uint64_t> digests;  // by rank; empty unless committed
  /// By number of the node in the incarnation's plan; empty unless committed at peer.
  std::vector<uint64_t> parity_digests = {};
  LifeId adopted_from = {};  // 0: it is of this life
  std::vector<Dispute> disputes = {};
  bool operator==(const VersionRecord&) const = default;
};

/// Everything of one cluster.
struct Records {
  std::vector<JobRecord> jobs;
  std::vector<LineageRecord> lineages;
  std::vector<VersionRecord> versions;
  std::vector<RunRecord> runs = {};
  std::vector<IncidentRecord> incidents = {};
  std::vector<QuarantineRecord> quarantine = {};
  std::vector<SuspectRecord> suspects = {};
};

}  // namespace holdfast::coord
