#pragma once

#include <poll.h>

#include <span>

namespace holdfast {

/// As poll(2); on virtual time in a simulation.
int Poll(std::span<pollfd> fds, int timeout_ms);
/// Call it after a write that another thread of this process may wait for in Poll(). Does nothing
/// outside a simulation.
void WakePolls();

}  // namespace holdfast
