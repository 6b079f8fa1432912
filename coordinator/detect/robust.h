#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

// Statistics that a few wild values do not move.

namespace holdfast::detect {

/// The lower median; reorders. 0 when empty. Of two values the smaller: so the faster of a pair is
/// the measure of the slower.
template <typename T>
T LowerMedian(std::span<T> values) {
  if (values.empty()) return T{};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The value that so many are below; reorders.
inline double Quantile(std::span<double> values, double q) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<size_t>(at)];
}

/// Median and median absolute deviation; reorders.
struct Centre {
  double median = 0;
  double mad = 0;
};
inline Centre CentreOf(std::span<double> values) {
  const double median = LowerMedian(values);
  for (double& value : values) value = std::abs(value - median);
  return {median, LowerMedian(values)};
}

/// Robust z of a value, the spread taken for at least `least_spread`.
inline double RobustZ(double value, const Centre& centre, double least_spread) {
  return 0.6745 * (value - centre.median) / std::max(centre.mad, least_spread);
}

/// The last values of a series.
template <typename T, size_t kSize>
class Recent {
 public:
  void Add(T value) {
    values_[added_ % kSize] = value;
    ++added_;
  }
  size_t size() const { return std::min<size_t>(added_, kSize); }
  uint64_t added() const { return added_; }
  bool full() const { return added_ >= kSize; }
  /// The next one to go, when full.
  T oldest() const { return values_[added_ % kSize]; }
  T Median() const {
    std::array<T, kSize> copy = values_;
    return LowerMedian(std::span<T>(copy.data(), size()));
  }
  std::span<const T> values() const { return {values_.data(), size()}; }

 private:
  std::array<T, kSize> values_{};
  uint64_t added_ = 0;
};

/// P(X ≥ k) of a binomial, for small p.
inline double BinomialTail(uint64_t k, uint64_t n, double p) {
  if (k == 0) return 1;
  if (k > n || p <= 0) return 0;
  if (p >= 1) return 1;
  double sum = 0;
  for (uint64_t i = k; i <= n; ++i) {
    const double log_term =
        std::lgamma(static_cast<double>(n) + 1) - std::lgamma(static_cast<double>(i) + 1) -
        std::lgamma(static_cast<double>(n - i) + 1) + static_cast<double>(i) * std::log(p) +
        static_cast<double>(n - i) * std::log1p(-p);
    const double term = std::exp(log_term);
    sum += term;
    if (term < sum * 1e-6) break;
  }
  return std::min(sum, 1.0);
}

}  // namespace holdfast::detect
