#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "agent/pipeline/session.h"

namespace holdfast::agent {

/// The connected trainers. Only the node's loop thread uses it.
class SessionTable {
 public:
  Session& Add(UniqueFd socket, UniqueFd pid_fd, const PeerCredentials& peer,
               Clock::TimePoint hello_deadline) {
    const uint64_t id = next_id_++;
    auto session =
        std::make_unique<Session>(id, std::move(socket), std::move(pid_fd), peer, hello_deadline);
    return *(sessions_[id] = std::move(session));
  }
  /// Returns nullptr when the session has ended.
  Session* Find(uint64_t id) const {
    auto found = sessions_.find(id);
    return found == sessions_.end() ? nullptr : found->second.get();
  }
  /// Returns the session if it can be served, or nullptr.
  Session* FindReady(uint64_t id) const {
    Session* session = Find(id);
    return session != nullptr && session->state == Session::State::kReady ? session : nullptr;
  }
  /// Returns the rank's session that is joining or ready, or nullptr.
  Session* FindJoined(const std::string& job, Rank rank) const {
    for (const auto& [id, session] : sessions_) {
      const bool joins =
          session->state == Session::State::kJoining || session->state == Session::State::kReady;
      if (joins && session->job == job && session->rank == rank) return session.get();
    }
    return nullptr;
  }
  /// Returns the rank's session if it can be served, or nullptr.
  Session* FindReady(const std::string& job, Rank rank) const {
    Session* session = FindJoined(job, rank);
    return session != nullptr && session->state == Session::State::kReady ? session : nullptr;
  }
  /// The job's sessions on this node.
  size_t CountOf(const std::string& job) const {
    return static_cast<size_t>(std::ranges::count_if(
        sessions_, [&](const auto& entry) { return entry.second->job == job; }));
  }
  bool HasSessionOf(const std::string& job) const {
    return std::any_of(sessions_.begin(), sessions_.end(),
                       [&](const auto& entry) { return entry.second->job == job; });
  }
  /// All sessions by their IDs, closing ones included.
  const std::map<uint64_t, std::unique_ptr<Session>>& all() const { return sessions_; }
  void Erase(uint64_t id) { sessions_.erase(id); }
  void Clear() { sessions_.clear(); }

 private:
  std::map<uint64_t, std::unique_ptr<Session>> sessions_;
  uint64_t next_id_ = 1;
};

}  // namespace holdfast::agent
