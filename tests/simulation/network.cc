#include "tests/simulation/network.h"

#include <algorithm>

namespace holdfast {

using std::chrono::microseconds;
using std::chrono::milliseconds;

Mailbox::Mailbox(SimScheduler& scheduler, SimProcess& process) : scheduler_(scheduler) {
  scheduler_.Spawn(process, [&scheduler, state = state_] {
    while (!state->closed) {
      const auto first = state->messages.begin();
      if (first == state->messages.end()) {
        scheduler.Wait(state.get(), Clock::TimePoint::max());
      } else if (first->first > scheduler.Now()) {
        scheduler.Wait(state.get(), first->first);
      } else {
        const std::function<void()> message = std::move(first->second);
        state->messages.erase(first);
        message();
      }
    }
    state->messages.clear();
    state->ended = true;
    scheduler.Wake(state.get(), /*all=*/true);
  });
}

void Mailbox::Post(Clock::TimePoint due, std::function<void()> message) {
  if (state_->closed) return;
  state_->messages.emplace(due, std::move(message));
  scheduler_.Wake(state_.get(), /*all=*/true);
}

void Mailbox::Close() {
  state_->closed = true;
  scheduler_.Wake(state_.get(), /*all=*/true);
  while (!state_->ended) scheduler_.Wait(state_.get(), Clock::TimePoint::max());
}

Clock::Duration Network::Delay() {
  if (faults_.delayed_one_in != 0 && random_.OneIn(faults_.delayed_one_in)) {
    return milliseconds(random_.Below(1'500));
  }
  return microseconds(50 + random_.Below(1'000));
}

bool Network::IsCutOff(const std::string& node) const {
  auto found = cut_until_.find(node);
  return found != cut_until_.end() && scheduler_.Now() < found->second;
}

Clock::TimePoint Network::StreamArrival(const std::string& node) {
  const Clock::TimePoint base = IsCutOff(node) ? cut_until_.at(node) : scheduler_.Now();
  return base + Delay();
}

void Network::Heal() {
  faults_ = {};
  cut_until_.clear();
}

}  // namespace holdfast
