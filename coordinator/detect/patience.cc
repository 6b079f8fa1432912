#include "coordinator/detect/patience.h"

#include <algorithm>

namespace holdfast::detect {
namespace {

constexpr uint64_t kOperationsKnown = 20;
constexpr double kStepFactor = 1.5;     // times the rank's own steps, or the communicator's pauses
constexpr double kIdleSteps = 2;        // the rank's own steps, subtracted from its idle time
constexpr double kPauseFactor = 1.25;   // times the longest pause of the job
constexpr double kDurationFactor = 10;  // times an operation's 99th percentile, up to absent_after
constexpr double kSuspectFactor = 2;    // times an operation's 99th percentile, or a step

uint64_t Nanos(double value) { return static_cast<uint64_t>(std::max(0.0, value)); }

double MaxOf(std::span<const float> values) {
  return values.empty() ? 0 : static_cast<double>(*std::max_element(values.begin(), values.end()));
}

}  // namespace

uint64_t Patience::P99Of(const Operation& operation) const {
  const uint64_t bytes = operation.starters.front().flight->record.bytes;
  return table_.SlowestUsual(
      DurationKeyOf(table_.comm(operation.comm).role, operation.kind, bytes));
}

uint64_t Patience::ToSuspect(const Operation& operation) const {
  auto usual = static_cast<double>(P99Of(operation));
  if (usual == 0) {
    // Its duration is not measured. It usually ends within a step of the ranks that wait.
    for (const Operation::Starter& starter : operation.starters) {
      usual = std::max(usual, MaxOf(table_.rank(starter.rank).steps_ns.values()));
    }
    usual = std::min(usual, static_cast<double>(options_.absent_after.count()) / kSuspectFactor);
  }
  return std::max(static_cast<uint64_t>(options_.hang_after.count()),
                  Nanos(kSuspectFactor * usual));
}

bool Patience::KnowsSteps(uint32_t rank) const { return table_.rank(rank).steps_ns.full(); }

uint64_t Patience::IdleFor(uint32_t rank) const {
  const RankInfo& info = table_.rank(rank);
  if (!KnowsSteps(rank) || info.moved_at == Clock::TimePoint::min()) return 0;
  const auto idle = static_cast<double>((table_.node(info.node).as_of - info.moved_at).count());
  const auto grace = static_cast<double>(info.grace_ns);
  return Nanos(idle - grace - kIdleSteps * MaxOf(info.steps_ns.values()));
}

/// The length of legitimate pauses that the job has shown so far, with a margin.
uint64_t Patience::UsualPause(const Operation& operation, uint32_t rank,
                              Clock::TimePoint now) const {
  const CommInfo& comm = table_.comm(operation.comm);
  const auto p99 = static_cast<double>(P99Of(operation));
  const auto absent = static_cast<double>(options_.absent_after.count());
  double pause = std::min(kDurationFactor * p99, std::max(absent, kStepFactor * p99));
  // Steps show more often than operations whether a rank makes progress. A pause between operations
  // does not excuse an operation that all ranks have started, unless some of them have left it: the
  // others may only not have noticed its end.
  if (rank == kNone ? !operation.left.empty() : !KnowsSteps(rank)) {
    pause = std::max(pause, kStepFactor * MaxOf(comm.pauses_ns.values()));
  }
  pause = std::max(pause, kPauseFactor * static_cast<double>(table_.longest_pause_ns()));
  const uint32_t subject = rank == kNone ? operation.starters.front().rank : rank;
  pause = std::max(pause, kStepFactor * MaxOf(table_.rank(subject).steps_ns.values()));
  if (rank != kNone && KnowsSteps(rank)) {
    // All ranks may be slow in this step: they compile, or the machine is overloaded.
    for (const Operation::Starter& starter : operation.starters) {
      const RankState& other = table_.rank(starter.rank).latest;
      if (other.step != table_.rank(rank).latest.step) continue;
      pause = std::max(pause, kStepFactor * (static_cast<double>(other.since_step_ns) -
                                             static_cast<double>(starter.flight->age_ns)));
    }
  }
  const bool first = !table_.any_completed() && !KnowsSteps(subject);
  if (first || (rank != kNone && !table_.rank(rank).has_begun())) {
    // For a first operation, only the time that the other ranks needed to reach it is known.
    const auto reached = now - Clock::Duration(static_cast<int64_t>(operation.oldest_ns));
    const auto needed = static_cast<double>((reached - table_.first_report()).count());
    pause = std::max(pause, kStepFactor * needed);
  }
  return Nanos(pause);
}

uint64_t Patience::ToBlame(const Operation& operation, uint32_t rank, RootState state,
                           Clock::TimePoint now) const {
  const auto minimum = [&]() -> Clock::Duration {
    switch (state) {
      case RootState::kStopped:
        return options_.hang_after;
      case RootState::kUnreachable:
        return 2 * options_.hang_after;
      case RootState::kCommunicating:
      case RootState::kGpuStalled:
        return options_.stuck_after;
      case RootState::kIdle:
        return options_.idle_after;
      case RootState::kRunning:
        return options_.absent_after * 5 / 4;
      case RootState::kOutsideCommunication:
      case RootState::kAgentSilent:
        return options_.absent_after;
      case RootState::kNodeSilent:
        return options_.silent_after;
    }
    return options_.absent_after;
  }();
  const auto patience = static_cast<uint64_t>(minimum.count());
  // A stopped process or an unreachable node is never a pause.
  if (state == RootState::kStopped || state == RootState::kUnreachable) return patience;
  const CommInfo& comm = table_.comm(operation.comm);
  const bool few = comm.completed_most[static_cast<size_t>(operation.kind)] < kOperationsKnown;
  const auto absent = static_cast<uint64_t>(options_.absent_after.count());
  return std::max({patience, few ? absent : 0, UsualPause(operation, rank, now)});
}

}  // namespace holdfast::detect
