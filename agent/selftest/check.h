#pragma once

#include <cstdint>
#include <string>

// The result of the check of one part of a node.

namespace holdfast::selftest {

enum class Outcome : uint8_t {
  kPassed,
  kFailed,     // the part gives wrong results or errors
  kNotTested,  // could not be tested: `what` has the reason and what to do
};

/// Returns "passed", "FAILED" or "not tested".
std::string_view ToString(Outcome outcome);

struct CheckResult {
  std::string part = {};  // "cpu", "memory", "disk /data"
  Outcome outcome = Outcome::kNotTested;
  std::string what = {};  // description for people
  uint64_t bytes = 0;     // number of bytes tested
  double write_rate = 0;  // bytes per second; 0: not measured
  double read_rate = 0;   // bytes per second; 0: not measured
  double seconds = 0;     // duration of the check
};

}  // namespace holdfast::selftest
