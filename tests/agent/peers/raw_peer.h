#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "agent/peers/channel.h"
#include "agent/peers/frame.h"
#include "agent/peers/handshake.h"
#include "agent/peers/messages.h"
#include "agent/peers/sockets.h"
#include "storage/format/checksum.h"
#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::agent {

inline std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Returns the bytes of a frame; its checksum starts at `stamp`.
inline std::string FrameBytes(FrameKind kind, const std::string& payload,
                              uint32_t stamp = kNoStamp) {
  const uint32_t crc = ExtendCrc32c(stamp, std::as_bytes(std::span(payload)));
  return Text(EncodeFrameHeader({kind, 0, static_cast<uint32_t>(payload.size()), crc})) + payload;
}

/// Returns a header with arbitrary fields and the matching checksum.
inline std::string HeaderBytes(uint8_t protocol, uint8_t kind, uint32_t payload_bytes) {
  std::string bytes = Text(EncodeFrameHeader({FrameKind::kHello, 0, payload_bytes, 0}));
  bytes[4] = static_cast<char>(protocol);
  bytes[5] = static_cast<char>(kind);
  bytes.resize(28);
  const uint32_t crc = Crc32c(std::as_bytes(std::span(bytes)));
  bytes.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
  return bytes;
}

/// A client or server that may violate the protocol: it sends the bytes of the test.
class RawPeer {
 public:
  explicit RawPeer(UniqueFd socket) : socket_(std::move(socket)) {}
  static RawPeer Dial(const std::string& address) {
    auto socket = ConnectTo(*ParseEndpoint(address), Far(), Clock::Real());
    EXPECT_TRUE(socket) << socket.error().ToString();
    return RawPeer(*std::move(socket));
  }
  /// Connects and completes the handshake of a cluster without a secret.
  static RawPeer DialProved(const std::string& address, const std::string& cluster) {
    RawPeer peer = Dial(address);
    Introduction hello;
    hello.cluster = cluster;
    hello.node = "raw";
    EXPECT_TRUE(peer.Send(FrameBytes(FrameKind::kHello, EncodeIntroduction(hello))));
    EXPECT_EQ(peer.ReceiveFrame().first, FrameKind::kChallenge);
    EXPECT_TRUE(peer.Send(FrameBytes(FrameKind::kProof, "")));
    EXPECT_EQ(peer.ReceiveFrame().first, FrameKind::kWelcome);
    return peer;
  }

  /// Returns false when the other side has closed the connection.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        bytes.remove_prefix(static_cast<size_t>(sent));
      } else if (errno == EAGAIN) {
        pollfd waiting{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
        if (::poll(&waiting, 1, 30'000) <= 0) return false;
      } else {
        return false;
      }
    }
    return true;
  }
  /// Receives exactly `bytes` bytes, or fewer where the other side closes the connection.
  std::string Receive(size_t bytes) {
    std::string got(bytes, '\0');
    size_t have = 0;
    while (have < bytes) {
      pollfd waiting{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&waiting, 1, 30'000) <= 0) break;
      const ssize_t n = ::recv(socket_.get(), got.data() + have, bytes - have, 0);
      if (n <= 0) break;
      have += static_cast<size_t>(n);
    }
    got.resize(have);
    return got;
  }
  /// Returns kind and payload; kEnd and nothing when the other side closed the connection.
  std::pair<FrameKind, std::string> ReceiveFrame() {
    const std::string header = Receive(kFrameHeaderBytes);
    if (header.size() < kFrameHeaderBytes) return {FrameKind::kEnd, ""};
    auto decoded = DecodeFrameHeader(std::as_bytes(std::span(header)).first<kFrameHeaderBytes>());
    EXPECT_TRUE(decoded) << decoded.error().ToString();
    if (!decoded) return {FrameKind::kEnd, ""};
    return {decoded->kind, Receive(decoded->payload_bytes)};
  }
  /// Returns the refusal that the other side ends with; OK when it closed without one.
  Status Refusal() {
    auto [kind, payload] = ReceiveFrame();
    if (kind != FrameKind::kError) return Status::Ok();
    EXPECT_EQ(Receive(1), "") << "then the other side closes";
    return DecodeError(std::as_bytes(std::span(payload)));
  }
  void Reset() { socket_.Reset(); }
  int fd() const { return socket_.get(); }

 private:
  UniqueFd socket_;
};

/// A server that follows a script: accepts one connection after another and passes each to the
/// script.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::function<void(RawPeer&)> script) : script_(std::move(script)) {
    auto listener = ListenAt(address_, Clock::Real());
    EXPECT_TRUE(listener) << listener.error().ToString();
    listener_ = *std::move(listener);
    thread_ = std::thread([this] { Run(); });
  }
  ~ScriptedServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string address() const { return address_.ToString(); }

 private:
  void Run() {
    for (;;) {
      pollfd waiting{.fd = listener_.get(), .events = POLLIN, .revents = 0};
      ::poll(&waiting, 1, -1);
      UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.valid()) return;
      RawPeer peer(std::move(socket));
      script_(peer);
    }
  }

  std::function<void(RawPeer&)> script_;
  Endpoint address_ = *ParseEndpoint("127.0.0.1:0");
  UniqueFd listener_;
  std::thread thread_;
};

}  // namespace holdfast::agent
