#pragma once

#include <cmath>
#include <cstdint>

#include "base/random.h"

// Random quantities with distributions that occur in running jobs.

namespace holdfast::sim {

class Noise {
 public:
  explicit Noise(uint64_t seed) : random_(seed) {}

  Random& random() { return random_; }
  double Uniform(double low, double high) { return low + (high - low) * random_.Unit(); }
  bool Chance(double p) { return random_.Unit() < p; }
  /// Returns a standard normal value from a table: fast, and exact up to four standard deviations.
  double Normal() { return Normal(random_.Next()); }
  static double Normal(uint64_t bits);
  double LogNormal(double sigma) { return std::exp(sigma * Normal()); }
  double Exponential(double mean) { return -mean * std::log(1 - random_.Unit()); }
  /// Returns a value with a heavy tail: at least `least`, with P(> x) = (least/x)^alpha, at most
  /// `most`.
  double Pareto(double least, double alpha, double most) {
    const double x = least * std::pow(1 - random_.Unit(), -1 / alpha);
    return x < most ? x : most;
  }

 private:
  Random random_;
};

}  // namespace holdfast::sim
