#include "testing/sim/program/fault.h"

#include <algorithm>

#include "testing/sim/job.h"

namespace holdfast::sim::program {

using detect::FaultClass;

const std::vector<FaultSpec>& Faults() {
  using enum FaultKind;
  static const std::vector<FaultSpec> kFaults = {
      {.name = "none"},
      {.name = "sigkill", .kind = kKilled},
      {.name = "node-gone", .kind = kNodeLost},
      {.name = "sigstop", .kind = kStopped},
      {.name = "loader", .kind = kLoader},
      {.name = "kernel", .kind = kInfiniteKernel},
      {.name = "storage-marked", .kind = kStorageMarked},
      {.name = "storage-unmarked", .kind = kStorageUnmarked},
      {.name = "mismatch", .kind = kMismatched},
      {.name = "link-dropped", .kind = kDroppedLink},
      {.name = "collective-hung", .kind = kHungCollective},
      {.name = "gpu-3%", .kind = kSlowGpu, .magnitude = 0.03},
      {.name = "gpu-5%", .kind = kSlowGpu, .magnitude = 0.05},
      {.name = "gpu-10%", .kind = kSlowGpu, .magnitude = 0.10},
      {.name = "gpu-30%", .kind = kSlowGpu, .magnitude = 0.30},
      {.name = "gpu-ramp", .kind = kRamp, .magnitude = 0.20},
      {.name = "gpu-intermittent", .kind = kIntermittent, .magnitude = 0.30},
      {.name = "cpu", .kind = kSlowCpu, .magnitude = 0.15},
      {.name = "nic-2x", .kind = kSlowNic, .magnitude = 2},
      {.name = "link-1.5x", .kind = kLossyLink, .magnitude = 1.5},
      {.name = "link-2.5x", .kind = kLossyLink, .magnitude = 2.5},
      {.name = "pcie-3x", .kind = kPcie, .magnitude = 3},
      {.name = "loader-first", .kind = kLoader, .when = When::kFirst},
      {.name = "never-joins", .kind = kNeverJoins, .when = When::kFirst},
      {.name = "gpu-10%-first", .kind = kSlowGpu, .magnitude = 0.10, .when = When::kFirst},
      {.name = "nic-2x-first", .kind = kSlowNic, .magnitude = 2, .when = When::kFirst},
      {.name = "sigstop-evaluation", .kind = kStopped, .when = When::kEvaluation},
      {.name = "sigstop-pause", .kind = kStopped, .when = When::kUnmarkedEvaluation},
      {.name = "sigstop-restarted", .kind = kStopped, .when = When::kRestarted},
      {.name = "gpu-30%-restarted", .kind = kSlowGpu, .magnitude = 0.30, .when = When::kRestarted},
      {.name = "sigstop-heals", .kind = kStopped, .heals_after_s = 90},
      {.name = "gpu-30%-heals", .kind = kSlowGpu, .magnitude = 0.30, .heals_after_s = 120},
      {.name = "nic-2x-heals", .kind = kSlowNic, .magnitude = 2, .heals_after_s = 120},
      {.name = "two-gpus",
       .kind = kSlowGpu,
       .magnitude = 0.15,
       .second = kSlowGpu,
       .second_magnitude = 0.15},
      {.name = "gpu-and-sigstop",
       .kind = kSlowGpu,
       .magnitude = 0.15,
       .second = kStopped,
       .second_after_s = 120},
      {.name = "gpu-and-nic",
       .kind = kSlowGpu,
       .magnitude = 0.15,
       .second = kSlowNic,
       .second_magnitude = 2},
      {.name = "gpu-and-collective",
       .kind = kSlowGpu,
       .magnitude = 0.30,
       .second = kHungCollective,
       .second_after_s = 60},
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
    case FaultKind::kNodeLost:
      return {FaultClass::kDead};
    case FaultKind::kStopped:
    case FaultKind::kLoader:
    case FaultKind::kNeverJoins:
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

namespace {

bool CanHave(FaultKind kind, Family family) {
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

}  // namespace

bool Fits(const FaultSpec& spec, Family family) {
  return CanHave(spec.kind, family) && CanHave(spec.second, family);
}

Fault PlaceFault(FaultKind kind, double magnitude, const Job& job, double onset_s, Noise& noise) {
  Fault fault{.kind = kind, .magnitude = magnitude, .onset_s = onset_s};
  fault.rank = static_cast<uint32_t>(noise.random().Below(job.world));
  if (job.channels.empty()) return fault;
  // A link belongs to a channel that crosses nodes and is used. Not all ranks have one.
  const bool link = kind == FaultKind::kSlowNic || kind == FaultKind::kDroppedLink ||
                    kind == FaultKind::kLossyLink || kind == FaultKind::kHungCollective;
  std::vector<uint32_t> used;
  for (uint32_t attempt = 0; attempt < job.world; ++attempt) {
    for (const Instruction& one : job.programs[fault.rank]) {
      const bool counts = one.kind == Instruction::Kind::kTransfer &&
                          job.channels[one.channel].crosses_nodes && one.seconds >= 0.001;
      if (counts) used.push_back(one.channel);
    }
    if (!link || !used.empty()) break;
    fault.rank = (fault.rank + 1) % job.world;
  }
  if (used.empty()) return fault;
  fault.channel = used[noise.random().Below(used.size())];
  const Channel& channel = job.channels[fault.channel];
  if (channel.pair) {
    if (link) fault.rank = channel.members[0];
    fault.peer = channel.members[fault.rank == channel.members[0] ? 1 : 0];
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
      if (link) fault.rank = from;
      fault.peer = channel.members[to];
      return fault;
    }
  }
  return fault;
}

}  // namespace holdfast::sim::program
