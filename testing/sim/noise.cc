#include "testing/sim/noise.h"

#include <array>

namespace holdfast::sim {
namespace {

constexpr size_t kTable = 1U << 14;

/// Returns normal quantiles at the centres of kTable equal steps, by bisection of the distribution.
std::array<float, kTable> Quantiles() {
  std::array<float, kTable> table{};
  double x = -5;
  for (size_t i = 0; i < kTable; ++i) {
    const double p = (static_cast<double>(i) + 0.5) / kTable;
    double high = 5;
    double low = x;
    for (int step = 0; step < 50; ++step) {
      const double middle = (low + high) / 2;
      (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
    }
    x = low;
    table[i] = static_cast<float>(x);
  }
  return table;
}

}  // namespace

double Noise::Normal(uint64_t bits) {
  static const std::array<float, kTable> table = Quantiles();
  return static_cast<double>(table[bits % kTable]);
}

}  // namespace holdfast::sim
