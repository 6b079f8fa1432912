#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <string>

#include "agent/peers/channel.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace holdfast::agent {

/// Idle connections that can be used for another stream. Thread-safe.
class IdleChannels {
 public:
  IdleChannels(size_t per_address_max, Clock::Duration timeout, const Clock& clock)
      : per_address_max_(per_address_max), timeout_(timeout), clock_(clock) {}

  /// Returns the connection to `address` that has been idle for the shortest time and is still
  /// connected; null if there is none.
  std::unique_ptr<Channel> Take(const std::string& address);
  /// Keeps the connection, or closes it when the address already has per_address_max idle ones.
  void Put(const std::string& address, std::unique_ptr<Channel> channel);

 private:
  struct Idle {
    std::string address;
    std::unique_ptr<Channel> channel;
    Clock::TimePoint since;
  };
  /// Closes connections that have been idle for longer than the timeout.
  void DropExpired() HOLDFAST_REQUIRES(mutex_);

  const size_t per_address_max_;
  const Clock::Duration timeout_;
  const Clock& clock_;
  Mutex mutex_;
  std::list<Idle> idle_ HOLDFAST_GUARDED_BY(mutex_);  // longest idle first
};

}  // namespace holdfast::agent
