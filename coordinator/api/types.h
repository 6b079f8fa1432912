#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "storage/base/ids.h"
#include "storage/base/life.h"
#include "storage/format/replica_sample.h"

// What travels between agents and the coordinator, as plain values with strong ids. The wire form
// is coordinator.proto; convert.h goes between the two and checks everything that arrives.

namespace holdfast::coord {

/// Most nodes of a parity group, and most of them whose loss it can survive: what the code allows.
inline constexpr uint32_t kPeerGroupNodesMax = 32;
inline constexpr uint32_t kPeerGroupParityMax = 4;
/// Most ranks of one member, and the most room for one: what a node image can be laid out with.
inline constexpr uint32_t kPeerRanksMax = 1024;
inline constexpr uint64_t kSlotBytesMax = uint64_t{1} << 42;
inline constexpr uint64_t kSlotBytesAlign = 4096;

/// Largest incarnation, and largest step: a successor always exists, and both fit into a signed
/// number.
inline constexpr uint64_t kVersionNumberMax = (uint64_t{1} << 63) - 2;
/// Longest text of a fact: why something is missing, or what is damaged.
inline constexpr size_t kFactTextBytesMax = 4096;

/// What a node says of itself, e.g. rack = "r7".
using Labels = std::map<std::string, std::string>;

/// A rank in a node image and the room it has there, constant for the incarnation.
struct PeerRank {
  Rank rank;
  uint64_t slot_bytes = 0;
  bool operator==(const PeerRank&) const = default;
};

struct PeerMember {
  std::string node;
  std::string address;  // of its peer listener; empty: not alive
  uint32_t number = 0;  // in the plan, over all groups; its parity shard is ParityRank(number)
  std::vector<PeerRank> ranks;  // ascending
  /// In a PrepareOrder, of its version, in memory or on disk: all its ranks' shards; its parity.
  bool has_data = false;
  bool has_parity = false;
  /// Its name in the plan as it was made, where another node has taken its place; empty: `node`.
  std::string planned = {};
  bool operator==(const PeerMember&) const = default;
};

/// Nodes that keep parity for each other. Without members: no protection.
struct PeerGroup {
  std::vector<PeerMember> members;  // by position in the stripes
  uint32_t parity = 0;              // members whose loss it survives
  bool operator==(const PeerGroup&) const = default;
};

/// A node has the bytes of one shard, complete and checksummed, at a tier. The shard is a rank's,
/// or the parity of a node (`IsParity(rank)`).
struct Holding {
  std::string job;
  VersionId version;
  Rank rank;
  uint32_t world = 0;
  Tier tier = Tier::kMemory;
  uint64_t digest = 0;
  uint64_t image_bytes = 0;
  std::string damage = {};  // not empty: some chunks of it are bad, and which was found
  LifeId life = {};         // of the seal
  std::vector<ReplicaSample> samples = {};  // of a save: what is to be equal on other ranks
  bool operator==(const Holding&) const = default;
};

/// A version will not have this rank's shard at this tier.
struct Missing {
  std::string job;
  VersionId version;
  Rank rank;
  Tier tier = Tier::kMemory;
  std::string why;
};

/// The node no longer has this shard at this tier.
struct Gone {
  std::string job;
  VersionId version;
  Rank rank;
  Tier tier = Tier::kMemory;
  std::string damage = {};  // not empty: it was found damaged, and how
};

/// The end of a PrepareOrder. DataLoss: the source is damaged and no longer counts.
struct Prepared {
  uint64_t request = 0;
  Status outcome;
};

/// A trainer of a node: connected, or gone with a goodbye.
struct LocalRank {
  std::string job;
  Incarnation incarnation;
  Rank rank;
  bool said_goodbye = false;
  bool operator==(const LocalRank&) const = default;
};

/// A trainer waits for a version at a tier.
struct TierWanted {
  std::string job;
  VersionId version;
  Tier tier = Tier::kDisk;
};

/// Whether a job has trainers. Running until the contrary is known.
enum class JobPhase : uint8_t {
  kRunning = 0,
  kEnded = 1,     // no trainer is left
  kFinished = 2,  // and all of them said goodbye, or the run ended
};

/// What operators see of a node beside its holdings.
struct NodeHealth {
  std::vector<std::string> warnings;
  uint32_t disk_free_percent = 0;
};

/// The coordinator's word on a job; sent whole. A step and incarnation of 0 mean "none".
struct JobWord {
  std::string job;
  Incarnation incarnation;
  VersionId memory_committed;
  VersionId disk_committed;
  std::vector<VersionId> aborted;
  Step disk_target_step;
  VersionId restore;
  VersionId peer_committed;
  Step peer_target_step;
  PeerGroup group;  // of the node that gets the word
  JobPhase phase = JobPhase::kRunning;
  /// The job is over and safe: its memory and threads go.
  bool release = false;
  /// Everything of incarnations up to `incarnation` goes.
  bool forget = false;
  bool operator==(const JobWord&) const = default;
};

/// Bring this shard, a rank's or a node's parity, to tier `into` (memory or disk) of the node that
/// gets the order, verified, and answer with Prepared. At tier peer there is no source: it is
/// decoded from what the members of `group` have.
struct PrepareOrder {
  uint64_t request = 0;
  std::string job;
  VersionId version;
  Rank rank;
  uint32_t world = 0;
  Tier tier = Tier::kMemory;
  Tier into = Tier::kMemory;
  std::string source_node;
  std::string source_address;
  uint64_t digest = 0;
  PeerGroup group;  // tier peer: of the version's incarnation
  bool operator==(const PrepareOrder&) const = default;
};

/// Delete what the node has of a version at a tier.
struct RemoveOrder {
  std::string job;
  VersionId version;
  Tier tier = Tier::kDisk;
  bool operator==(const RemoveOrder&) const = default;
};

}  // namespace holdfast::coord
