#include "testing/sim/program/job.h"

#include <algorithm>

#include "testing/sim/program/writer.h"

namespace holdfast::sim::program {

std::string_view ToString(Family family) {
  switch (family) {
    case Family::kDdp:
      return "ddp";
    case Family::kFsdp:
      return "fsdp";
    case Family::kTensorData:
      return "tp-dp";
    case Family::kPipeline:
      return "1f1b";
    case Family::kInterleaved:
      return "interleaved";
    case Family::kThree:
      return "3d";
    case Family::kExperts:
      return "moe";
    case Family::kAccumulation:
      return "accumulation";
    case Family::kLocalSgd:
      return "local-sgd";
    case Family::kSendReceive:
      return "send-receive";
    case Family::kStepsOnly:
      return "steps-only";
  }
  return "?";
}

bool Fits(Family family, uint32_t world) {
  switch (family) {
    case Family::kTensorData:
    case Family::kInterleaved:
    case Family::kPipeline:
    case Family::kExperts:
      return world >= 2 && world % 2 == 0;
    case Family::kThree:
      return world >= 8 && world % 8 == 0;
    default:
      return world >= 2;
  }
}

Job MakeJob(Family family, uint32_t world, const JobOptions& options) {
  Job job;
  job.family = family;
  job.world = world;
  job.ranks_per_node = options.ranks_per_node;
  job.programs.resize(world);
  job.comms_of.resize(world);
  job.replica_of.resize(world);
  for (uint32_t rank = 0; rank < world; ++rank) job.replica_of[rank] = rank;
  switch (family) {
    case Family::kDdp:
    case Family::kAccumulation:
    case Family::kLocalSgd:
      WriteData(job, options);
      break;
    case Family::kFsdp:
      WriteSharded(job, options);
      break;
    case Family::kTensorData:
      WriteTensor(job, options);
      break;
    case Family::kPipeline:
    case Family::kInterleaved:
    case Family::kThree:
      WritePipeline(job, options);
      break;
    case Family::kExperts:
      WriteExperts(job, options);
      break;
    case Family::kSendReceive:
    case Family::kStepsOnly:
      WriteWithoutCollectives(job, options);
      break;
  }
  for (uint32_t i = 0; i < job.comms.size(); ++i) {
    for (const uint32_t member : job.comms[i].members) job.comms_of[member].push_back(i);
  }
  for (Channel& channel : job.channels) {
    const uint32_t first = job.node_of(channel.members.front());
    channel.crosses_nodes =
        std::any_of(channel.members.begin(), channel.members.end(),
                    [&](uint32_t member) { return job.node_of(member) != first; });
  }
  for (const Program& program : job.programs) {
    for (const Instruction& one : program) {
      job.streams = std::max<uint32_t>(job.streams, one.stream + 1U);
    }
  }
  return job;
}

}  // namespace holdfast::sim::program
