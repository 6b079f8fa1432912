#include "coordinator/detect/patience.h"

#include <algorithm>

namespace holdfast::detect {
namespace {

constexpr uint64_t kOperationsKnown = 20;
constexpr double kSteps = 1.5;        // of the rank's own, and of the communicator's pauses
constexpr double kPauses = 1.25;      // of the longest of the whole job
constexpr double kDurations = 10;     // of an operation's 99th percentile, up to absent_after
constexpr double kSuspectFactor = 2;  // of the same

uint64_t Nanos(double value) { return static_cast<uint64_t>(std::max(0.0, value)); }

double MostOf(std::span<const float> values) {
  return values.empty() ? 0 : static_cast<double>(*std::max_element(values.begin(), values.end()));
}

}  // namespace

uint64_t Patience::SlowestUsual(const Operation& operation) const {
  const uint64_t bytes = operation.starters.front().flight->bytes;
  return table_.SlowestUsual(KindOf(table_.comm(operation.comm).role, operation.func, bytes));
}

uint64_t Patience::ToSuspect(const Operation& operation) const {
  return std::max(static_cast<uint64_t>(options_.hang_after.count()),
                  Nanos(kSuspectFactor * static_cast<double>(SlowestUsual(operation))));
}

/// What the job has shown of itself.
uint64_t Patience::Usual(const Operation& operation, uint32_t rank, Clock::TimePoint now) const {
  const CommInfo& comm = table_.comm(operation.comm);
  const auto slowest = static_cast<double>(SlowestUsual(operation));
  const auto absent = static_cast<double>(options_.absent_after.count());
  double usual = std::min(kDurations * slowest, std::max(absent, kSteps * slowest));
  usual = std::max(usual, kSteps * MostOf(comm.pauses_ns.values()));
  usual = std::max(usual, kPauses * static_cast<double>(table_.longest_pause_ns()));
  const uint32_t whose = rank == kNone ? operation.starters.front().rank : rank;
  usual = std::max(usual, kSteps * MostOf(table_.rank(whose).steps_ns.values()));
  if (!table_.any_completed() || (rank != kNone && !table_.rank(rank).has_begun())) {
    // Of a first operation no more is known than how long the others needed to come to it.
    const auto came = now - Clock::Duration(static_cast<int64_t>(operation.oldest_ns));
    usual = std::max(usual, kSteps * static_cast<double>((came - table_.first_heard()).count()));
  }
  return Nanos(usual);
}

uint64_t Patience::ToBlame(const Operation& operation, uint32_t rank, Standing standing,
                           Clock::TimePoint now) const {
  const auto least = [&]() -> Clock::Duration {
    switch (standing) {
      case Standing::kStopped:
        return options_.hang_after;
      case Standing::kOutOfReach:
        return 2 * options_.hang_after;
      case Standing::kStuck:
        return options_.stuck_after;
      case Standing::kRunning:
        return options_.absent_after * 5 / 4;
      case Standing::kElsewhere:
      case Standing::kAgentSilent:
        return options_.absent_after;
      case Standing::kSilent:
        return options_.silent_after;
    }
    return options_.absent_after;
  }();
  const auto patience = static_cast<uint64_t>(least.count());
  // What is seen to be stopped or gone needs no history.
  if (standing == Standing::kStopped || standing == Standing::kOutOfReach) return patience;
  const CommInfo& comm = table_.comm(operation.comm);
  const bool few = comm.completed_most[static_cast<size_t>(operation.func)] < kOperationsKnown;
  const auto absent = static_cast<uint64_t>(options_.absent_after.count());
  return std::max({patience, few ? absent : 0, Usual(operation, rank, now)});
}

}  // namespace holdfast::detect
