#include "charlm/adam.h"

#include <cmath>

namespace charlm {
namespace {
constexpr float kBeta1 = 0.9F;
constexpr float kBeta2 = 0.999F;
constexpr float kEpsilon = 1e-8F;
}  // namespace

AdamShard::AdamShard(const Parameter& parameter, uint32_t rank, uint32_t world)
    : first_row(FirstRow(parameter.rows, rank, world)),
      rows(FirstRow(parameter.rows, rank + 1, world) - first_row),
      moment1(rows * parameter.columns),
      moment2(rows * parameter.columns) {}

void AdamShard::Apply(Parameter& parameter, uint64_t step, float learning_rate) {
  auto count = static_cast<double>(step);
  auto correction1 = static_cast<float>(1 / (1 - std::pow(double{kBeta1}, count)));
  auto correction2 = static_cast<float>(1 / (1 - std::pow(double{kBeta2}, count)));
  float* value = parameter.value.data() + first_row * parameter.columns;
  const float* gradient = parameter.gradient.data() + first_row * parameter.columns;
  for (uint64_t i = 0; i < moment1.size(); ++i) {
    moment1[i] = kBeta1 * moment1[i] + (1 - kBeta1) * gradient[i];
    moment2[i] = kBeta2 * moment2[i] + (1 - kBeta2) * gradient[i] * gradient[i];
    value[i] -=
        learning_rate * moment1[i] * correction1 / (std::sqrt(moment2[i] * correction2) + kEpsilon);
  }
}

}  // namespace charlm
