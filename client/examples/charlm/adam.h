#pragma once

#include <cstdint>
#include <vector>

#include "charlm/model.h"

namespace charlm {

/// Adam for the rows of one parameter that this rank owns. Each rank keeps only the moments of its
/// rows (ZeRO, stage 1).
struct AdamShard {
  uint64_t first_row = 0;
  uint64_t rows = 0;
  std::vector<float> moment1;
  std::vector<float> moment2;

  AdamShard(const Parameter& parameter, uint32_t rank, uint32_t world);
  /// Updates this rank's rows of `parameter` from its gradient. `step` counts from 1.
  void Apply(Parameter& parameter, uint64_t step, float learning_rate);
};

}  // namespace charlm
