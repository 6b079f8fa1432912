#include "coordinator/api/unix_connections.h"

#include <charconv>
#include <string_view>

namespace holdfast::coord {
namespace {
constexpr std::string_view kPrefix = "fd:";
}  // namespace

void UnixConnections::Add(int number, const UnixPeer& peer) {
  MutexLock lock(mutex_);
  peers_[number] = peer;
}

void UnixConnections::Remove(int number) {
  MutexLock lock(mutex_);
  peers_.erase(number);
}

std::optional<UnixPeer> UnixConnections::Find(const std::string& peer) const {
  if (!peer.starts_with(kPrefix)) return std::nullopt;
  int number = -1;
  const char* end = peer.data() + peer.size();
  const auto parsed = std::from_chars(peer.data() + kPrefix.size(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  MutexLock lock(mutex_);
  const auto found = peers_.find(number);
  return found == peers_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace holdfast::coord
