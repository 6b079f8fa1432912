#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/mutex.h"

namespace holdfast::agent {

/// What protects the frames of a connection after the handshake.
enum class FrameMode : uint8_t {
  kTls,    // encryption
  kMac,    // a tag for each frame
  kPlain,  // nothing: on this machine only
};
inline constexpr std::array kFrameModes = {FrameMode::kTls, FrameMode::kMac, FrameMode::kPlain};
/// Returns "tls", "mac" or "plain".
std::string_view ToString(FrameMode mode);

/// Counts the connections of peers by mode. Logs the first connection of each node, and each one
/// whose mode differs from that of the connection before. Thread-safe.
class FrameModes {
 public:
  /// Nodes that are remembered. When there are more, all are logged again.
  static constexpr size_t kNodesMax = 4096;

  /// Counts a connection of the node `node` at the address `peer`.
  void Add(const std::string& node, const std::string& peer, FrameMode mode);
  uint64_t count(FrameMode mode) const { return counts_[static_cast<size_t>(mode)]; }

 private:
  /// Returns whether the mode of the node was not known.
  bool Remember(const std::string& node, FrameMode mode);

  std::array<std::atomic<uint64_t>, kFrameModes.size()> counts_{};
  Mutex mutex_;
  std::map<std::string, FrameMode> last_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
