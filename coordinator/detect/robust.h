#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

// Robust statistics: a few outliers do not change them.

namespace holdfast::detect {

/// Returns the lower median, 0 if empty. Reorders the values. Of two values it is the smaller, so
/// the slower of two ranks is compared with the faster.
template <typename T>
T LowerMedian(std::span<T> values) {
  if (values.empty()) return T{};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Standard error of the median of n values, as a multiple of their spread divided by √n.
inline constexpr double kMedianError = 1.2533;

/// Returns the quantile `q` (0 … 1) of the values, 0 if empty. Reorders the values.
inline double Quantile(std::span<double> values, double q) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<size_t>(at)];
}

/// Median and median absolute deviation.
struct Centre {
  double median = 0;
  double mad = 0;
};
/// Overwrites the values.
inline Centre CentreOf(std::span<double> values) {
  const double median = LowerMedian(values);
  for (double& value : values) value = std::abs(value - median);
  return {median, LowerMedian(values)};
}

/// Returns the robust z-score of a value. The spread counts as at least `least_spread`.
inline double RobustZ(double value, const Centre& centre, double least_spread) {
  return 0.6745 * (value - centre.median) / std::max(centre.mad, least_spread);
}

/// The last kSize values of a series.
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
  /// The value that was added `back` values before the last one.
  T Last(size_t back) const { return values_[(added_ - 1 - back) % kSize]; }
  /// The value that the next Add() replaces, if full.
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

/// Returns P(X ≥ k) of a binomial distribution, for small p.
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
