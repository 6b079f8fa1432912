#include "tests/sim/program/fault.h"

#include <algorithm>

#include "tests/sim/job.h"

namespace holdfast::sim::program {

using detect::FaultClass;

const std::vector<FaultSpec>& Faults() {
  static const std::vector<FaultSpec> kFaults = {
      {"none", FaultKind::kNone},
      {"sigkill", FaultKind::kKilled},
      {"node-gone", FaultKind::kNodeGone},
      {"sigstop", FaultKind::kStopped},
      {"loader", FaultKind::kLoader},
      {"kernel", FaultKind::kInfiniteKernel},
      {"storage-marked", FaultKind::kStorageMarked},
      {"storage-unmarked", FaultKind::kStorageUnmarked},
      {"mismatch", FaultKind::kMismatched},
      {"link-dropped", FaultKind::kDroppedLink},
      {"collective-hung", FaultKind::kHungCollective},
      {"gpu-3%", FaultKind::kSlowGpu, 0.03},
      {"gpu-5%", FaultKind::kSlowGpu, 0.05},
      {"gpu-10%", FaultKind::kSlowGpu, 0.10},
      {"gpu-30%", FaultKind::kSlowGpu, 0.30},
      {"gpu-ramp", FaultKind::kRamp, 0.20},
      {"gpu-intermittent", FaultKind::kIntermittent, 0.30},
      {"cpu", FaultKind::kSlowCpu, 0.15},
      {"nic-2x", FaultKind::kSlowNic, 2},
      {"link-1.5x", FaultKind::kLossyLink, 1.5},
      {"link-2.5x", FaultKind::kLossyLink, 2.5},
      {"pcie-3x", FaultKind::kPcie, 3},
  };
  return kFaults;
}

const FaultSpec* FindFault(std::string_view name) {
  for (const FaultSpec& spec : Faults()) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

bool IsHang(FaultKind kind) { return kind > FaultKind::kNone && kind < FaultKind::kSlowGpu; }

std::vector<FaultClass> RightClasses(FaultKind kind) {
  switch (kind) {
    case FaultKind::kNone:
      return {};
    case FaultKind::kKilled:
    case FaultKind::kNodeGone:
      return {FaultClass::kDead};
    case FaultKind::kStopped:
    case FaultKind::kLoader:
    case FaultKind::kInfiniteKernel:
    case FaultKind::kStorageMarked:
    case FaultKind::kStorageUnmarked:
      return {FaultClass::kComputeHang};
    case FaultKind::kMismatched:
      return {FaultClass::kSoftwareMismatch};
    case FaultKind::kDroppedLink:
    case FaultKind::kHungCollective:
      return {FaultClass::kCommHang};
    case FaultKind::kSlowGpu:
    case FaultKind::kRamp:
    case FaultKind::kIntermittent:
    case FaultKind::kSlowCpu:
      return {FaultClass::kComputeSlow};
    case FaultKind::kSlowNic:
    case FaultKind::kLossyLink:
    case FaultKind::kPcie:
      return {FaultClass::kCommSlow};
  }
  return {};
}

bool Fits(FaultKind kind, Family family) {
  const bool link = kind == FaultKind::kDroppedLink || kind == FaultKind::kHungCollective ||
                    kind == FaultKind::kSlowNic || kind == FaultKind::kLossyLink;
  if (family == Family::kStepsOnly)
    return !link && kind != FaultKind::kMismatched && kind != FaultKind::kPcie;
  if (kind == FaultKind::kMismatched) return family != Family::kSendReceive;
  if (kind == FaultKind::kPcie) {
    return family == Family::kFsdp || family == Family::kPipeline || family == Family::kThree;
  }
  return true;
}

Fault PlaceFault(const FaultSpec& spec, const Job& job, double onset_s, Noise& noise) {
  Fault fault{.kind = spec.kind, .magnitude = spec.magnitude, .onset_s = onset_s};
  fault.rank = static_cast<uint32_t>(noise.random().Below(job.world));
  if (job.channels.empty()) return fault;
  // A link is one of a channel that crosses nodes and is used.
  std::vector<uint32_t> used;
  for (const Instruction& one : job.programs[fault.rank]) {
    if (one.kind != Instruction::Kind::kTransfer || !job.channels[one.channel].crosses_nodes ||
        one.seconds < 0.001) {
      continue;
    }
    used.push_back(one.channel);
  }
  if (used.empty()) return fault;
  fault.channel = used[noise.random().Below(used.size())];
  const Channel& channel = job.channels[fault.channel];
  if (channel.pair) {
    fault.rank = channel.members[0];
    fault.peer = channel.members[1];
    return fault;
  }
  const auto n = static_cast<uint32_t>(channel.members.size());
  const auto at =
      static_cast<uint32_t>(std::find(channel.members.begin(), channel.members.end(), fault.rank) -
                            channel.members.begin());
  // The first position from here on whose neighbour is on another node.
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t from = channel.members[(at + i) % n];
    for (const uint32_t to : Neighbours((at + i) % n, n)) {
      if (job.node_of(channel.members[to]) == job.node_of(from)) continue;
      const bool moves = spec.kind != FaultKind::kSlowNic && spec.kind != FaultKind::kDroppedLink &&
                         spec.kind != FaultKind::kLossyLink &&
                         spec.kind != FaultKind::kHungCollective;
      if (!moves) fault.rank = from;
      fault.peer = channel.members[to];
      return fault;
    }
  }
  return fault;
}

}  // namespace holdfast::sim::program
