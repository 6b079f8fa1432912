// Feeds bytes to the server's side of the handshake of peers, as a client that has proved nothing.

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "agent/peers/channel.h"
#include "agent/peers/frame.h"
#include "agent/peers/handshake.h"
#include "base/clock.h"
#include "base/ids.h"
#include "storage/format/checksum.h"
#include "tests/fuzz/require.h"

namespace holdfast::agent {
namespace {
constexpr auto kDeadline = std::chrono::seconds(30);

/// Reads the input as frames, each a kind, flags, a length and a payload, and returns them with the
/// right checksums, which a fuzzer does not find.
std::string FramesOf(std::span<const uint8_t> input) {
  constexpr size_t kFieldsBytes = 4;
  std::string bytes;
  while (input.size() >= kFieldsBytes) {
    const size_t claimed = input[2] | size_t{input[3]} << 8U;
    const auto payload = std::as_bytes(input.subspan(kFieldsBytes))
                             .first(std::min(claimed, input.size() - kFieldsBytes));
    const auto header =
        EncodeFrameHeader({static_cast<FrameKind>(input[0]), input[1],
                           static_cast<uint32_t>(claimed), ExtendCrc32c(kNoStamp, payload)});
    bytes.append(reinterpret_cast<const char*>(header.data()), header.size());
    bytes.append(reinterpret_cast<const char*>(payload.data()), payload.size());
    input = input.subspan(kFieldsBytes + payload.size());
  }
  return bytes;
}

/// Serves one connection that sends `bytes` and closes its side. Returns the node that the
/// handshake accepts; "": it accepts none.
std::string NodeAccepted(std::string_view bytes, const PeerIdentity& self) {
  std::array<int, 2> sockets{};
  FUZZ_REQUIRE(
      ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets.data()) == 0);
  const UniqueFd client{sockets[1]};
  Channel server(UniqueFd{sockets[0]}, "fuzzer", Clock::Real());
  const ssize_t sent = ::send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  FUZZ_REQUIRE(sent >= 0);
  ::shutdown(client.get(), SHUT_WR);
  const Clock::TimePoint deadline = Clock::Real().Now() + kDeadline;
  const auto node = ShakeHandsAsServer(server, self, deadline);
  if (node) return *node;
  FUZZ_REQUIRE(!node.error().message().empty());
  // A client that has closed its side must not occupy the server until the deadline.
  FUZZ_REQUIRE(Clock::Real().Now() < deadline);
  return "";
}

void Serve(std::string_view bytes) {
  const std::string node = NodeAccepted(bytes, {.cluster = "c", .node = "server", .secret = ""});
  if (!node.empty()) FUZZ_REQUIRE(ValidateName("node", node).ok());
  // The proof covers a random number that the client cannot know in advance.
  const std::string secret(32, 's');
  FUZZ_REQUIRE(NodeAccepted(bytes, {.cluster = "c", .node = "server", .secret = secret}).empty());
}
}  // namespace
}  // namespace holdfast::agent

/// Sends the input unchanged, and as frames.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast::agent;
  constexpr size_t kBytesMax = 16 << 10;
  if (size > kBytesMax) return 0;
  Serve({reinterpret_cast<const char*>(data), size});
  Serve(FramesOf({data, size}));
  return 0;
}
