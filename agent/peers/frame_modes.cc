#include "agent/peers/frame_modes.h"

#include "base/log.h"

namespace holdfast::agent {

std::string_view ToString(FrameMode mode) {
  switch (mode) {
    case FrameMode::kTls:
      return "tls";
    case FrameMode::kMac:
      return "mac";
    case FrameMode::kPlain:
      return "plain";
  }
  return "unknown";
}

bool FrameModes::Remember(const std::string& node, FrameMode mode) {
  MutexLock lock(mutex_);
  const auto known = last_.find(node);
  if (known != last_.end() && known->second == mode) return false;
  if (known == last_.end() && last_.size() >= kNodesMax) last_.clear();
  last_[node] = mode;
  return true;
}

void FrameModes::Add(const std::string& node, const std::string& peer, FrameMode mode) {
  ++counts_[static_cast<size_t>(mode)];
  if (!Remember(node, mode)) return;
  Log(LogLevel::kInfo, "PeerConnected",
      {Kv("node", node), Kv("peer", peer), Kv("mode", ToString(mode))});
}

}  // namespace holdfast::agent
