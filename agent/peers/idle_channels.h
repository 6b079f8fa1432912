#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <string>

#include "agent/peers/channel.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace holdfast::agent {

/// Connections that wait for their next stream. Thread-safe.
class IdleChannels {
 public:
  IdleChannels(size_t per_address_max, Clock::Duration timeout)
      : per_address_max_(per_address_max), timeout_(timeout) {}

  /// The one that waits for the shortest time, if it still is connected; null: none.
  std::unique_ptr<Channel> Take(const std::string& address);
  /// Keeps it, or drops it where there are enough.
  void Put(const std::string& address, std::unique_ptr<Channel> channel);

 private:
  struct Idle {
    std::string address;
    std::unique_ptr<Channel> channel;
    Clock::TimePoint since;
  };
  /// Drops what has waited too long.
  void DropOld() HOLDFAST_REQUIRES(mutex_);

  const size_t per_address_max_;
  const Clock::Duration timeout_;
  Mutex mutex_;
  std::list<Idle> idle_ HOLDFAST_GUARDED_BY(mutex_);  // longest first
};

}  // namespace holdfast::agent
