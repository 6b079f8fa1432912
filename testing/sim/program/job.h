#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "coordinator/detect/records.h"

// Training jobs as rank programs: the instructions of each rank's CPU in an iteration, in order.
// The engine (engine.h) executes them on a compute stream and on one stream per communicator.

namespace holdfast::sim::program {

enum class Family : uint8_t {
  kDdp,           // all-reduce of buckets during the backward pass
  kFsdp,          // weights gathered before use, gradients scattered
  kTensorData,    // all-reduce in each layer, buckets over replicas
  kPipeline,      // 1F1B, uneven stages, collectives over stages
  kInterleaved,   // 1F1B with two chunks per stage
  kThree,         // tensor × pipeline × data
  kExperts,       // all-to-all to experts with different numbers of tokens
  kAccumulation,  // several batches per reduction
  kLocalSgd,      // many steps per reduction
  kSendReceive,   // sends and receives, no collectives
  kStepsOnly,     // its communication is not recorded
};
inline constexpr Family kFamilies[] = {
    Family::kDdp,         Family::kFsdp,        Family::kTensorData, Family::kPipeline,
    Family::kInterleaved, Family::kThree,       Family::kExperts,    Family::kAccumulation,
    Family::kLocalSgd,    Family::kSendReceive, Family::kStepsOnly};
/// Returns "ddp", "fsdp" and so on, as on the command line.
std::string_view ToString(Family family);

/// What the time of a computation depends on, in addition to the GPU's speed.
enum class Work : uint8_t { kFixed, kTokens, kExperts };

struct Instruction {
  enum class Kind : uint8_t {
    kHost,      // the CPU is busy
    kLoad,      // the CPU waits for the next batch
    kCompute,   // enqueues a kernel on the compute stream
    kTransfer,  // enqueues an operation on its channel's stream, after the kernels so far
    kWait,      // the compute stream waits for the transfer with this label
    kSync,      // the CPU waits until the compute stream has completed all kernels
    kStep,      // ends the step
  };
  Kind kind = Kind::kHost;
  Work work = Work::kFixed;
  CollectiveKind collective = CollectiveKind::kOther;
  uint8_t stream = 0;
  uint16_t label = 0;  // of a transfer, for kWait; 0: no instruction waits for it
  uint16_t every = 1;  // executed only if the iteration modulo `every` is every − 1
  uint32_t channel = 0;
  uint64_t bytes = 0;
  double seconds = 0;  // of computing or of the transfer, in an iteration of about one second
};
using Program = std::vector<Instruction>;

struct Comm {
  CommunicatorId id;
  CommunicatorRole role = CommunicatorRole::kUnknown;
  std::vector<uint32_t> members;
  bool recorded = true;  // its operations are recorded
};

/// Ranks that take part in the same operations, in the order of their programs: all members of a
/// communicator, or a sender and a receiver.
struct Channel {
  uint32_t comm = 0;
  std::vector<uint32_t> members;
  bool pair = false;
  bool crosses_nodes = false;
};

struct Job {
  Family family = Family::kDdp;
  uint32_t world = 0;
  uint32_t ranks_per_node = 1;
  std::vector<Comm> comms;
  std::vector<Channel> channels;
  std::vector<Program> programs;                // by rank
  std::vector<std::vector<uint32_t>> comms_of;  // by rank
  std::vector<uint32_t> replica_of;             // ranks of one replica share their sequences
  uint32_t experts = 0;                         // ranks that share the tokens of one all-to-all
  uint32_t streams = 1;

  uint32_t nodes() const { return (world + ranks_per_node - 1) / ranks_per_node; }
  uint32_t node_of(uint32_t rank) const { return rank / ranks_per_node; }
};

/// Differences between jobs of one family.
struct JobOptions {
  uint32_t ranks_per_node = 1;
  double first_stage = 1.1;  // load of the first stage (embedding) and the last (head with loss)
  double last_stage = 1.25;
  bool sends_wait = false;     // the compute stream also waits for sends
  bool over_stages = true;     // gradient norm and tied embeddings: collectives over stages
  uint32_t local_steps = 100;  // of local SGD
  bool sync_each_step = true;  // the CPU waits for the loss
  bool hidden_barrier = true;  // in a job that reports only steps
};

/// Whether a job of the family can have `world` ranks.
bool Fits(Family family, uint32_t world);
Job MakeJob(Family family, uint32_t world, const JobOptions& options);

}  // namespace holdfast::sim::program
