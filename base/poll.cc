#include "base/poll.h"

#include "base/scheduler.h"

namespace holdfast {

int Poll(std::span<pollfd> fds, int timeout_ms) {
  if (Scheduler* scheduler = Scheduler::Installed()) {
    return scheduler->Poll(fds.data(), fds.size(), timeout_ms);
  }
  return ::poll(fds.data(), fds.size(), timeout_ms);
}

void WakePolls() {
  if (Scheduler* scheduler = Scheduler::Installed()) scheduler->WakePolls();
}

}  // namespace holdfast
