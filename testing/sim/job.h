#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "coordinator/detect/records.h"

// The simulated jobs: how ranks are arranged and what an iteration does.

namespace holdfast::sim {

enum class Shape { kData, kTensorData, kPipeline, kExperts };
/// "DP", "TP×DP", "PP×DP", "MoE"
std::string_view ToString(Shape shape);
inline constexpr Shape kShapes[] = {Shape::kData, Shape::kTensorData, Shape::kPipeline,
                                    Shape::kExperts};

/// Communicators of one role: every rank is in exactly one of them.
struct Family {
  CommunicatorRole role = CommunicatorRole::kUnknown;
  std::vector<std::vector<uint32_t>> groups;  // of ranks
  std::vector<uint32_t> group_of;             // by rank
  bool crosses_nodes = false;                 // its transfers use connections that can be slow
};

/// What the time of a computation depends on.
enum class Load { kDense, kExpert };

/// One part of an iteration, executed by every rank.
struct Part {
  enum class Kind { kCompute, kCollective, kPipeline } kind = Kind::kCompute;
  double share = 0;  // of the iteration's nominal time, for computing or for the transfer
  Load load = Load::kDense;
  uint32_t family = 0;
  CollectiveKind collective = CollectiveKind::kOther;
  uint64_t bytes = 0;
  bool by_tokens = false;  // bytes and duration are proportional to the rank's tokens
};

struct Job {
  Shape shape = Shape::kData;
  uint32_t world = 0;
  uint32_t ranks_per_node = 8;
  std::vector<Family> families;
  uint32_t data_family = 0;  // the one that crosses nodes
  std::vector<Part> parts;
  // Pipeline: rank = stage · replicas + replica.
  uint32_t stages = 1;
  uint32_t microbatches = 1;
  std::vector<double> stage_load;    // 1: the usual load
  std::vector<uint32_t> replica_of;  // by rank; ranks of one replica share their input

  uint32_t nodes() const { return (world + ranks_per_node - 1) / ranks_per_node; }
};

Job MakeJob(Shape shape, uint32_t world);

/// Returns the positions to which position `i` of a communicator of `n` sends: rings in both
/// directions and with longer strides, as several channels use them.
std::vector<uint32_t> Neighbours(uint32_t i, uint32_t n);

}  // namespace holdfast::sim
