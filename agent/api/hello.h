#pragma once

#include <cstdint>
#include <string>

#include "agent/api/messages.h"
#include "base/status.h"

namespace holdfast::agent {

/// What a trainer states in its Hello, checked. Nothing of it is proved: the kernel names the user.
struct Introduced {
  std::string job;
  std::string run_id;
};

/// Checks the numbers and texts of a Hello, whose size CheckPacket() has checked. InvalidArgument,
/// or Unsupported for another protocol: the message names the value and what is possible.
Result<Introduced> CheckHello(const HelloMessage& hello);

/// Returns the memory that the trainer of a checked Hello needs: a control block and its slots.
uint64_t SegmentBytesOf(const HelloMessage& hello);

}  // namespace holdfast::agent
