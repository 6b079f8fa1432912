#include "cli/cluster/leader_calls.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "cli/cluster/rpc.h"
#include "cli/core/interrupt.h"

namespace holdfast::cli {
namespace {
/// With several coordinators, each is asked for this part of the timeout.
constexpr int64_t kTriesOfAll = 5;
}  // namespace

Result<LeaderCalls> LeaderCalls::Open(const GlobalOptions& options, std::string hint,
                                      const Clock& clock) {
  HOLDFAST_RETURN_IF_ERROR(CheckMayCall(options.endpoint, options));
  HOLDFAST_ASSIGN_OR_RETURN(auto coordinators,
                            coord::LeaderChannel::Make(options.endpoint, TlsOf(options)));
  return LeaderCalls(std::move(coordinators), options, std::move(hint), clock);
}

LeaderCalls::LeaderCalls(std::unique_ptr<coord::LeaderChannel> coordinators,
                         const GlobalOptions& options, std::string hint, const Clock& clock)
    : coordinators_(std::move(coordinators)),
      peer_("the coordinator at " + options.endpoint),
      hint_(std::move(hint)),
      timeout_ms_(options.timeout_ms),
      clock_(&clock) {}

const std::shared_ptr<grpc::Channel>& LeaderCalls::channel() const {
  return coordinators_->channel(coordinators_->current());
}

Status LeaderCalls::StatusOf(const grpc::Status& finished) const {
  return FromTransport(finished, peer_, timeout_ms_, hint_);
}

Status LeaderCalls::Repeat(const Try& attempt) {
  grpc::Status finished;
  Search search;
  const Clock::TimePoint until = clock_->Now() + std::chrono::milliseconds(timeout_ms_);
  for (int64_t left_ms = timeout_ms_; left_ms > 0;) {
    finished = CallOnce(attempt, left_ms, &search);
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    if (!search.again) break;
    HOLDFAST_RETURN_IF_ERROR(Interrupt::SleepFor(std::min(left_ms, kRetryPauseMs)));
    left_ms = std::chrono::duration_cast<std::chrono::milliseconds>(until - clock_->Now()).count();
  }
  const bool failed = finished.error_code() == grpc::StatusCode::UNAVAILABLE ||
                      finished.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  return StatusOf(failed && search.answer ? *search.answer : finished);
}

grpc::Status LeaderCalls::CallOnce(const Try& attempt, int64_t left_ms, Search* search) {
  const size_t count = coordinators_->size();
  const size_t asked = coordinators_->current();
  // A stopped coordinator does not answer; leave time to ask each of them.
  const int64_t wait_ms = count == 1 ? left_ms : std::min(left_ms, timeout_ms_ / kTriesOfAll);
  grpc::ClientContext call;
  SilenceGuard guard(call, std::max<int64_t>(wait_ms, 1), *clock_);
  OnInterrupt cancel([&call] { call.TryCancel(); });
  grpc::Status finished = attempt(coordinators_->channel(asked), &call);
  search->again = guard.expired() || IsSlowHandshake(finished);
  if (search->again) finished = {grpc::StatusCode::DEADLINE_EXCEEDED, "silent"};
  if (count == 1) return finished;
  if (search->again || finished.error_code() == grpc::StatusCode::UNAVAILABLE) {
    // While one stands by, a leader can be expected soon. When no coordinator can be reached, a
    // longer wait would not help.
    search->unreached = search->again || coord::StandsBy(call) ? 0 : search->unreached + 1;
    search->again = search->unreached < count;
    coordinators_->Follow(asked, call);
    // The reason why no coordinator serves is the leader's; the others only name it.
    if (coord::StandsBy(call)) {
      search->leader = coordinators_->current();
    } else if (search->leader == asked && finished.error_code() == grpc::StatusCode::UNAVAILABLE) {
      search->answer = {
          grpc::StatusCode::UNAVAILABLE,
          "the leader " + coordinators_->address(asked) + ": " + finished.error_message()};
    }
  }
  return finished;
}

}  // namespace holdfast::cli
