#pragma once

#include "base/clock.h"
#include "base/endpoint.h"
#include "base/fd.h"
#include "base/status.h"

namespace holdfast::agent {

/// Returns a non-blocking listener and sets the bound port in `address`. Replaces a stale socket
/// file, but not one with a live listener (AlreadyExists). Only this user may access a socket file.
Result<UniqueFd> ListenAt(Endpoint& address, const Clock& clock);

/// Returns a connected, non-blocking socket. "localhost" is always 127.0.0.1.
/// Unavailable: no process listens there or the address is unreachable. DeadlineExceeded: also when
/// resolving a name takes too long.
Result<UniqueFd> ConnectTo(const Endpoint& address, Clock::TimePoint deadline, const Clock& clock);

/// Disables Nagle's algorithm, so that frames of any size are sent immediately. No effect on a unix
/// socket.
void DisableDelay(int socket);

/// Returns whether a call on a non-blocking socket that failed with `error` may succeed later.
bool IsRetry(int error);

/// Returns the time until `deadline` in milliseconds, rounded up, for poll(); 0 when the deadline
/// has passed.
int PollMsUntil(Clock::TimePoint deadline, const Clock& clock);

}  // namespace holdfast::agent
