#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "agent/api/hello.h"
#include "agent/api/messages.h"
#include "base/ids.h"
#include "base/job_name.h"
#include "tests/fuzz/require.h"

namespace holdfast::agent {
namespace {
void CheckOne(const HelloMessage& hello) {
  const auto checked = CheckHello(hello);
  FUZZ_REQUIRE(hello.JoinedBefore() < uint64_t{1} << 48);
  if (!checked) {
    FUZZ_REQUIRE(!checked.error().message().empty());
    FUZZ_REQUIRE(checked.error().code() == ErrorCode::kInvalidArgument ||
                 checked.error().code() == ErrorCode::kUnsupported);
    return;
  }
  FUZZ_REQUIRE(ValidateJobName(checked->job).ok());
  FUZZ_REQUIRE(!checked->run_id.empty() && checked->run_id.size() <= kNameBytes);
  FUZZ_REQUIRE(hello.rank < hello.world && hello.world <= kWorldMax);
  // The arena is compared with this number, so it must not be one that wrapped around.
  FUZZ_REQUIRE(SegmentBytesOf(hello) / hello.slots >= hello.slot_bytes);
}
}  // namespace
}  // namespace holdfast::agent

/// Checks the input as the first packet of a trainer: unchanged, and as the fields of a Hello.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast::agent;
  const auto packet = std::as_bytes(std::span(data, size));
  const auto header = CheckPacket(packet);
  HelloMessage hello;
  if (header) {
    FUZZ_REQUIRE(size <= kMessageBytesMax && NameOf(header->type) != "Unknown");
    if (header->type == MessageType::kHello) {
      FUZZ_REQUIRE(size == sizeof(hello));
      std::memcpy(&hello, data, size);
      CheckOne(hello);
    }
  } else {
    FUZZ_REQUIRE(!header.error().message().empty());
  }
  if (size < sizeof(hello)) return 0;
  std::memcpy(&hello, data, sizeof(hello));
  hello.protocol = kProtocolVersion;  // another one hides the checks that follow
  CheckOne(hello);
  return 0;
}
