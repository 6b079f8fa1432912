#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "agent/peers/frame.h"
#include "agent/peers/frame_mac.h"
#include "base/mutex.h"
#include "storage/format/checksum.h"
#include "tests/agent/peers/raw_peer.h"

namespace holdfast::agent {

/// A machine between a client and a server. It reads the bytes of a connection, passes the TLS
/// records on, and may change each frame with a tag.
class FrameTap {
 public:
  /// Returns the bytes to pass on in place of the frame; frames are counted from 0.
  using Change = std::function<std::string(size_t number, std::string frame)>;
  using Edit = std::function<void(std::string& frame)>;

  /// `cut_at`: the frame of the server before whose last byte the connection ends.
  FrameTap(const std::string& upstream, Change from_client, Change from_server,
           size_t cut_at = SIZE_MAX)
      : from_client_(std::move(from_client)),
        from_server_(std::move(from_server)),
        cut_at_(cut_at),
        server_([this, upstream](RawPeer& client) { Relay(client, upstream); }) {}

  static Change EditAt(size_t at, Edit edit) {
    return [at, edit = std::move(edit)](size_t number, std::string frame) {
      if (number == at) edit(frame);
      return frame;
    };
  }
  /// Sets the checksum of the header to the right one.
  static void CorrectHeader(std::string& frame) {
    constexpr size_t kCovered = kFrameHeaderBytes - sizeof(uint32_t);
    const uint32_t crc = Crc32c(std::as_bytes(std::span(frame)).first(kCovered));
    std::memcpy(frame.data() + kCovered, &crc, sizeof(crc));
  }

  std::string address() const { return server_.address(); }
  /// Returns all bytes that passed.
  std::string Wire() {
    MutexLock lock(mutex_);
    return wire_;
  }

 private:
  void Relay(RawPeer& client, const std::string& upstream) {
    RawPeer server = RawPeer::Dial(upstream);
    std::thread up([&] { Pass(client, server, from_client_, SIZE_MAX); });
    Pass(server, client, from_server_, cut_at_);
    up.join();
  }

  /// Passes records and frames on until one side ends, and then ends both.
  void Pass(RawPeer& from, RawPeer& to, const Change& change, size_t cut_at) {
    size_t number = 0;
    for (;;) {
      std::string unit = from.Receive(5);
      if (unit.size() < 5) break;
      const bool frame = unit[0] == 'H';
      if (frame) {
        unit += from.Receive(kFrameHeaderBytes - 5);
        uint32_t payload = 0;
        std::memcpy(&payload, unit.data() + 8, sizeof(payload));
        unit += from.Receive(payload + kFrameTagBytes);
      } else {
        unit += from.Receive(static_cast<unsigned char>(unit[3]) * 256U +
                             static_cast<unsigned char>(unit[4]));
      }
      {
        MutexLock lock(mutex_);
        wire_ += unit;
      }
      if (frame && change != nullptr) unit = change(number, std::move(unit));
      const bool cut = frame && number == cut_at;
      if (cut) unit.pop_back();
      if (!to.Send(unit) || cut) break;
      number += frame ? 1 : 0;
    }
    ::shutdown(from.fd(), SHUT_RDWR);
    ::shutdown(to.fd(), SHUT_RDWR);
  }

  const Change from_client_;
  const Change from_server_;
  const size_t cut_at_;
  Mutex mutex_;
  std::string wire_ HOLDFAST_GUARDED_BY(mutex_);
  ScriptedServer server_;  // last: its thread uses the others
};

}  // namespace holdfast::agent
