#include "agent/api/hello.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "agent/api/segment_layout.h"
#include "base/ids.h"
#include "base/job_name.h"

namespace holdfast::agent {
namespace {
constexpr uint32_t kSlotsMin = 2;

Status ValidateRunId(std::string_view run_id) {
  const bool printable =
      std::all_of(run_id.begin(), run_id.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (!run_id.empty() && printable) return Status::Ok();
  return Status(ErrorCode::kInvalidArgument,
                "the run ID must be 1 to 128 printable characters without spaces, and the same for "
                "all ranks of one start of the job (HOLDFAST_RUN_ID)");
}

Status CheckShape(const HelloMessage& hello) {
  if (hello.world == 0 || hello.world > kWorldMax || hello.rank >= hello.world) {
    return InvalidArgumentError(
        fmt::format("rank {} of a world of {}: a world has 1 to {} ranks, numbered from 0",
                    hello.rank, hello.world, kWorldMax));
  }
  if (hello.slots < kSlotsMin || hello.slots > kSlotsMax) {
    return InvalidArgumentError(
        fmt::format("{} slots requested: between {} and {} are possible "
                    "(one is always kept while the next is written)",
                    hello.slots, kSlotsMin, kSlotsMax));
  }
  if (hello.slot_bytes == 0 || hello.slot_bytes > kSlotBytesMax) {
    return InvalidArgumentError(
        fmt::format("slots of {} bytes requested: between 1 and {} bytes are possible",
                    hello.slot_bytes, kSlotBytesMax));
  }
  return Status::Ok();
}
}  // namespace

Result<Introduced> CheckHello(const HelloMessage& hello) {
  if (hello.protocol != kProtocolVersion) {
    return Fail(Status(ErrorCode::kUnsupported,
                       fmt::format("the trainer uses protocol {}, this agent {}: install the same "
                                   "Holdfast version for both",
                                   hello.protocol, kProtocolVersion)));
  }
  Introduced introduced{GetText(hello.job), GetText(hello.run_id)};
  HOLDFAST_RETURN_IF_ERROR(ValidateJobName(introduced.job));
  HOLDFAST_RETURN_IF_ERROR(ValidateRunId(introduced.run_id));
  HOLDFAST_RETURN_IF_ERROR(CheckShape(hello));
  return introduced;
}

uint64_t SegmentBytesOf(const HelloMessage& hello) {
  return kControlBytes + hello.slots * RoundUp(hello.slot_bytes, kSlotAlign);
}

}  // namespace holdfast::agent
