#include "testing/sim/job.h"

#include <algorithm>
#include <cmath>

namespace holdfast::sim {
namespace {

constexpr uint64_t kMiB = 1ULL << 20;

/// Returns groups of `size` ranks that are `stride` apart.
Family MakeFamily(CommunicatorRole role, uint32_t world, uint32_t size, uint32_t stride) {
  Family family{.role = role, .groups = {}, .group_of = std::vector<uint32_t>(world)};
  const uint32_t block = size * stride;
  for (uint32_t first = 0; first < world; first += block) {
    for (uint32_t offset = 0; offset < stride; ++offset) {
      std::vector<uint32_t> group;
      for (uint32_t i = 0; i < size; ++i) group.push_back(first + offset + i * stride);
      for (uint32_t rank : group) {
        family.group_of[rank] = static_cast<uint32_t>(family.groups.size());
      }
      family.groups.push_back(std::move(group));
    }
  }
  return family;
}

Part Compute(double share, Load load = Load::kDense) {
  return {.kind = Part::Kind::kCompute, .share = share, .load = load};
}

Part Transfer(uint32_t family, CollectiveKind collective, double share, uint64_t bytes,
              bool by_tokens = false) {
  return {.kind = Part::Kind::kCollective,
          .share = share,
          .family = family,
          .collective = collective,
          .bytes = bytes,
          .by_tokens = by_tokens};
}

/// Sharded data parallelism: weights are gathered before computing, gradients are scattered after
/// it.
void MakeData(Job& job) {
  job.families = {MakeFamily(CommunicatorRole::kData, job.world, job.world, 1)};
  for (int i = 0; i < 3; ++i) {
    job.parts.push_back(Transfer(0, CollectiveKind::kAllGather, 0.04, 256 * kMiB));
    job.parts.push_back(Compute(0.11));
  }
  for (int i = 0; i < 3; ++i) {
    job.parts.push_back(Compute(0.14));
    job.parts.push_back(Transfer(0, CollectiveKind::kReduceScatter, 0.04, 256 * kMiB));
  }
  job.parts.push_back(Transfer(0, CollectiveKind::kAllReduce, 0.005, 64));
}

void MakeTensorData(Job& job) {
  const uint32_t tensor = job.world >= 16 ? 8 : 4;
  job.families = {MakeFamily(CommunicatorRole::kTensor, job.world, tensor, 1),
                  MakeFamily(CommunicatorRole::kData, job.world, job.world / tensor, tensor)};
  job.data_family = 1;
  for (uint32_t rank = 0; rank < job.world; ++rank) job.replica_of[rank] = rank / tensor;
  for (int i = 0; i < 4; ++i) {
    job.parts.push_back(Compute(0.16));
    job.parts.push_back(Transfer(0, CollectiveKind::kAllReduce, 0.03, 64 * kMiB, true));
  }
  job.parts.push_back(Transfer(1, CollectiveKind::kReduceScatter, 0.12, 512 * kMiB));
  job.parts.push_back(Compute(0.02));
  job.parts.push_back(Transfer(1, CollectiveKind::kAllGather, 0.10, 512 * kMiB));
}

void MakePipeline(Job& job) {
  job.stages = job.world >= 64 ? 8 : 4;
  const uint32_t replicas = job.world / job.stages;
  job.microbatches = job.stages;
  job.families = {MakeFamily(CommunicatorRole::kData, job.world, replicas, 1)};
  for (uint32_t rank = 0; rank < job.world; ++rank) job.replica_of[rank] = rank % replicas;
  job.stage_load.assign(job.stages, 1);
  job.parts.push_back({.kind = Part::Kind::kPipeline, .share = 0.72});
  job.parts.push_back(Transfer(0, CollectiveKind::kReduceScatter, 0.13, 512 * kMiB));
  job.parts.push_back(Compute(0.03));
  job.parts.push_back(Transfer(0, CollectiveKind::kAllGather, 0.12, 512 * kMiB));
}

void MakeExperts(Job& job) {
  const uint32_t experts = job.world >= 64 ? 8 : 4;
  job.families = {MakeFamily(CommunicatorRole::kExpert, job.world, experts, 1),
                  MakeFamily(CommunicatorRole::kData, job.world, job.world, 1)};
  job.data_family = 1;
  for (int i = 0; i < 2; ++i) {
    job.parts.push_back(Compute(0.17));
    job.parts.push_back(Transfer(0, CollectiveKind::kAllToAll, 0.04, 128 * kMiB, true));
    job.parts.push_back(Compute(0.17, Load::kExpert));
    job.parts.push_back(Transfer(0, CollectiveKind::kAllToAll, 0.04, 128 * kMiB, true));
  }
  job.parts.push_back(Transfer(1, CollectiveKind::kAllReduce, 0.10, 512 * kMiB));
  job.parts.push_back(Compute(0.02));
  job.parts.push_back(Transfer(1, CollectiveKind::kAllGather, 0.06, 256 * kMiB));
}

}  // namespace

std::string_view ToString(Shape shape) {
  switch (shape) {
    case Shape::kData:
      return "DP";
    case Shape::kTensorData:
      return "TP×DP";
    case Shape::kPipeline:
      return "PP×DP";
    case Shape::kExperts:
      return "MoE";
  }
  return "?";
}

Job MakeJob(Shape shape, uint32_t world) {
  Job job;
  job.shape = shape;
  job.world = world;
  job.ranks_per_node = world >= 64 ? 8 : 2;  // a small job has several nodes
  job.replica_of.resize(world);
  for (uint32_t rank = 0; rank < world; ++rank) job.replica_of[rank] = rank;
  switch (shape) {
    case Shape::kData:
      MakeData(job);
      break;
    case Shape::kTensorData:
      MakeTensorData(job);
      break;
    case Shape::kPipeline:
      MakePipeline(job);
      break;
    case Shape::kExperts:
      MakeExperts(job);
      break;
  }
  job.families[job.data_family].crosses_nodes = true;
  return job;
}

std::vector<uint32_t> Neighbours(uint32_t i, uint32_t n) {
  const auto stride = std::max<uint32_t>(2, static_cast<uint32_t>(std::sqrt(n)));
  std::vector<uint32_t> found;
  for (uint32_t step : {1U, n - 1, stride % n, n - stride % n}) {
    const uint32_t to = (i + step) % n;
    if (to != i && std::find(found.begin(), found.end(), to) == found.end()) found.push_back(to);
  }
  return found;
}

}  // namespace holdfast::sim
