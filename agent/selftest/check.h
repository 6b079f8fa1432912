#pragma once

#include <cstdint>
#include <string>

// What a check of one part of a node has shown.

namespace holdfast::selftest {

enum class Outcome : uint8_t {
  kPassed,
  kFailed,     // the part gives wrong results or errors
  kNotTested,  // it could not be tried: `what` says why and what to do
};

/// "passed", "FAILED", "not tested"
std::string_view ToString(Outcome outcome);

struct CheckResult {
  std::string part = {};  // "cpu", "memory", "disk /data"
  Outcome outcome = Outcome::kNotTested;
  std::string what = {};  // in words, for people
  uint64_t bytes = 0;     // moved
  double write_rate = 0;  // bytes a second; 0: not measured
  double read_rate = 0;   // the same
  double seconds = 0;     // that it took
};

}  // namespace holdfast::selftest
