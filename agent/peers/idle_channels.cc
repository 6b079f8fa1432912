#include "agent/peers/idle_channels.h"

#include <algorithm>
#include <utility>

namespace holdfast::agent {

void IdleChannels::DropExpired() {
  const Clock::TimePoint oldest = clock_.Now() - timeout_;
  while (!idle_.empty() && idle_.front().since < oldest) idle_.pop_front();
}

std::unique_ptr<Channel> IdleChannels::Take(const std::string& address) {
  MutexLock lock(mutex_);
  DropExpired();
  for (auto it = idle_.end(); it != idle_.begin();) {
    --it;
    if (it->address != address) continue;
    std::unique_ptr<Channel> channel = std::move(it->channel);
    it = idle_.erase(it);
    if (channel->IsQuiet()) return channel;
  }
  return nullptr;
}

void IdleChannels::Put(const std::string& address, std::unique_ptr<Channel> channel) {
  MutexLock lock(mutex_);
  DropExpired();
  const auto same = std::count_if(idle_.begin(), idle_.end(),
                                  [&](const Idle& one) { return one.address == address; });
  if (static_cast<size_t>(same) >= per_address_max_) return;
  idle_.push_back({address, std::move(channel), clock_.Now()});
}

}  // namespace holdfast::agent
