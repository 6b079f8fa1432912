#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "storage/collective/collective.h"

// The records that agents report about a running job: plain values, the input of the detector. Each
// record comes from one rank, or from the agent of its node. The detector uses only durations on
// that node's monotonic clock and never compares times of different nodes. Any record may be lost,
// late, duplicated or corrupt. The detector refuses a number that is not in its enum.

namespace holdfast::detect {

/// One operation that one rank completed. Agents may report only a sample of the operations if all
/// ranks choose the same ones, by a hash of (communicator, kind, sequence).
struct RankRecord {
  Rank rank;
  CollectiveRecord record = {};
};

/// The least advanced of a rank's transfers in one operation: an EdgeWait with a rank of the job in
/// place of an index.
struct PeerEdge {
  Rank peer;
  Direction direction = Direction::kSend;
  EdgeState state = EdgeState::kIdle;
  /// Transfers of the operation that are complete on this edge; nullopt: unknown.
  std::optional<uint64_t> completed = {};
};

/// An InFlight of one rank. Agents need to report only operations that are older than about a
/// second.
struct RankFlight {
  Rank rank;
  CollectiveRecord record = {};
  bool started = false;
  uint64_t age_ns = 0;  // since its start, or since it was enqueued, when the digest was taken
  std::optional<PeerEdge> edge = {};
};

/// How many operations of one kind a rank has completed. Every digest contains the counts that
/// changed recently. Without them, a rank that has just left an operation looks like a rank that
/// never joined it.
struct RankCompleted {
  Rank rank;
  CompletedCount operations = {};
};

/// What one rank sent to or received from one peer over a window of operations.
struct RankTransfers {
  Rank rank;
  Rank peer;
  PeerTransfers sums = {};
};

/// Phases that a rank marks. In them it makes no steps, or makes them more slowly than usual.
enum class Phase : uint8_t {
  kInit = 1,
  kCompile = 2,
  kCheckpoint = 4,
  kEvaluation = 8,
  kCollective = 16,  // the rank itself reports that it is in a collective
};

/// What the agent observes of one rank.
struct RankState {
  Rank rank;
  bool alive = true;           // by its pidfd
  bool ended_orderly = false;  // exit code 0, SIGTERM or SIGINT: not a fault
  char process_state = 'R';    // from /proc/PID/stat: R S D T t Z X; 0: unknown
  /// Waits of its threads for a processor, in percent of two seconds, summed; 0: not measured.
  uint32_t processor_wait_percent = 0;
  uint8_t phases = 0;  // bits of Phase: every phase since the previous digest
  uint64_t step = 0;
  uint64_t silent_ns = 0;            // since the process last wrote anything
  uint64_t since_step_ns = 0;        // since `step` advanced
  std::vector<StepTime> steps = {};  // completed since the previous digest, oldest first
};

/// Whether the agent of one node recently received an answer from the node `node`.
struct Reach {
  std::string node;
  bool reached = false;
  uint64_t took_ns = 0;  // until the answer; 0: not measured
};

/// One agent's report on its ranks, in one message.
struct Digest {
  std::string node;
  Incarnation incarnation;
  uint32_t world = 0;        // ranks of the job
  uint64_t agent_start = 0;  // identifies the agent's process, which restarts `number`
  uint64_t number = 0;       // sequence number of this agent's digests of the job
  uint64_t taken_ns = 0;     // the node's monotonic clock
  std::vector<Communicator> communicators;  // with all members; `index` does not count
  std::vector<RankState> ranks;
  std::vector<RankRecord> ended;
  std::vector<RankFlight> in_flight;
  std::vector<RankCompleted> completed;
  std::vector<RankTransfers> peers;
  std::vector<Reach> reach = {};  // of a few other nodes, while an operation is stuck or slow
};

}  // namespace holdfast::detect
