#pragma once

#include <optional>
#include <string>

#include "base/clock_skew.h"

namespace holdfast::agent {

/// The warning that this node's clock differs from the coordinator's. A call proves a skew only
/// beyond its uncertainty, so that slow calls neither set nor clear the warning. The text changes
/// only when the skew has changed much, since each change is reported at once. Thread-compatible.
class ClockWarning {
 public:
  /// Takes the result of one call. Returns whether text() has changed.
  bool Observe(ClockSkew skew);
  /// Returns the warning; empty: the clocks agree, or nothing is known.
  const std::string& text() const { return text_; }

 private:
  std::optional<int64_t> shown_nanos_;
  std::string text_;
};

}  // namespace holdfast::agent
