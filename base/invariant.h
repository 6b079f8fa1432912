#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"

// Invariants: statements that hold as long as the program is correct and its memory is intact. They
// are checked in every build. Bad input is no violation: it gets an error.

namespace holdfast {

/// The place and the text of an invariant.
struct InvariantSite {
  std::string_view file;
  int line = 0;
  std::string_view expression;
};

/// Records violations of one component: of the coordinator, or of one rank on a node. A component
/// with a violation stops serving; its owner asks violated() before each result leaves it. Nothing
/// resets a monitor: only a new process starts without the violation. Thread-safe.
class InvariantMonitor {
 public:
  /// `component` names the component in log lines: "coordinator", "job/rank-3".
  explicit InvariantMonitor(std::string component) : component_(std::move(component)) {}
  InvariantMonitor(const InvariantMonitor&) = delete;
  InvariantMonitor& operator=(const InvariantMonitor&) = delete;

  bool violated() const { return violated_.load(std::memory_order_acquire); }
  /// Describes the first violation; empty if there was none.
  std::string what() const;
  /// Returns the error for calls that the stopped component refuses; OK without a violation.
  Status error() const;
  /// Counts the violation, and writes one log line for each of the first ones. Returns false, so
  /// that HOLDFAST_INVARIANT can be a condition.
  bool Report(const InvariantSite& site, std::initializer_list<LogField> values) noexcept;

  /// The monitor of code that belongs to no component, such as the client library.
  static InvariantMonitor& Process();

 private:
  const std::string component_;
  std::atomic<bool> violated_{false};
  mutable Mutex mutex_;
  std::string what_ HOLDFAST_GUARDED_BY(mutex_);
  uint32_t logged_ HOLDFAST_GUARDED_BY(mutex_) = 0;
};

/// Returns the violations of all monitors of this process since its start.
uint64_t InvariantViolations();
/// Describes the first violation of this process; empty if there was none.
std::string FirstInvariantViolation();

}  // namespace holdfast

/// Checks an invariant and reports a violation to `monitor`, with values as Kv(...) fields. The
/// program continues: the result is the value of the expression, for code that would be unsafe
/// after a violation:
///   if (!HOLDFAST_INVARIANT(monitor, users > 0, Kv("slot", slot))) return;
/// The fields are evaluated only for a violation.
#define HOLDFAST_INVARIANT(monitor, expression, ...)     \
  (__builtin_expect(static_cast<bool>(expression), 1) || \
   (monitor).Report({__FILE__, __LINE__, #expression}, {__VA_ARGS__}))
