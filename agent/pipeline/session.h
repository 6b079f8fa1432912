#pragma once

#include <array>
#include <bitset>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/api/messages.h"
#include "agent/api/socket.h"
#include "agent/arena/memory_file.h"
#include "agent/pipeline/rank_slots.h"
#include "storage/base/clock.h"

namespace holdfast::agent {

struct RankPipeline;
class VersionView;

/// A view that a trainer has open: the version, and the memory they share. Whoever reads into that
/// keeps both.
struct OpenView {
  /// Reads bytes of a shard into a place, which is nobody else's meanwhile. Most trainers need few
  /// of the places or none, so each gets its memory when it is read into.
  Status Read(Rank rank, uint64_t offset, uint32_t place, uint64_t bytes);

  std::shared_ptr<VersionView> view;
  MemoryFile memory;
  std::array<uint64_t, kViewPlaces> allocated{};  // bytes of each place
};

/// A BeginSave that waits for a slot.
struct WaitingSave {
  uint64_t ticket = 0;
  uint64_t step = 0;
  uint64_t image_bytes = 0;
  bool skipping = false;
  Clock::TimePoint deadline;
};

/// A FindRestore that is decided, whose shard is still being brought into memory.
struct WaitingRestore {
  uint64_t ticket = 0;
  RestoreDecision decision;
  Clock::TimePoint deadline;
};

/// An OpenView that is decided, while this rank's own shard is being brought into memory.
struct WaitingView {
  uint64_t ticket = 0;
  RestoreDecision decision;
  Clock::TimePoint deadline;
};

/// A FindRestore that the coordinator has not decided yet.
struct RestoreAsk {
  uint64_t ticket = 0;
  RestoreQuestion question;
  Clock::TimePoint deadline;
  bool under_way = false;  // else it is asked again at `retry_at`
  Clock::TimePoint retry_at;
};

/// One connected trainer: its socket, what it said it is and what it waits for. Only the node's
/// loop thread touches it.
class Session {
 public:
  enum class State { kHello, kJoining, kReady, kClosing };

  Session(uint64_t id, UniqueFd socket, UniqueFd pid_fd, const PeerCredentials& peer,
          Clock::TimePoint hello_deadline)
      : id_(id),
        socket_(std::move(socket)),
        pid_fd_(std::move(pid_fd)),
        peer_(peer),
        deadline(hello_deadline) {}

  uint64_t id() const { return id_; }
  int socket() const { return socket_.get(); }
  int pid_fd() const { return pid_fd_.get(); }
  Result<UniqueFd> DuplicatePidFd() const;
  const PeerCredentials& peer() const { return peer_; }

  /// Sends a packet now, or as soon as the trainer reads; to one that has hung up, nothing. False:
  /// it is so far behind that it is to be dropped.
  [[nodiscard]] bool Send(std::span<const std::byte> packet, std::span<const int> fds = {});
  template <typename Message>
  [[nodiscard]] bool SendMessage(const Message& message, std::span<const int> fds = {}) {
    return Send(std::as_bytes(std::span(&message, 1)), fds);
  }
  bool has_backlog() const { return !backlog_.empty(); }
  [[nodiscard]] bool FlushBacklog();

 private:
  uint64_t id_;
  UniqueFd socket_;
  UniqueFd pid_fd_;
  PeerCredentials peer_;
  std::deque<std::vector<std::byte>> backlog_;

 public:
  State state = State::kHello;
  Clock::TimePoint deadline;  // of the Hello
  std::string job;
  std::string run_id;
  Rank rank;
  uint32_t world = 0;
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;
  Clock::TimePoint joins_since;      // while it is being joined
  Clock::TimePoint next_progress;    // when it is told next that its memory is being reserved
  Incarnation incarnation;
  // Shared with data readers and workers, which may outlast the rank's place in the node.
  std::shared_ptr<RankPipeline> pipeline;
  bool fenced = false;
  bool said_goodbye = false;
  bool starved = false;  // was told that no slot is free
  std::deque<WaitingSave> waiting_saves;
  std::vector<WaitingRestore> waiting_restores;
  std::optional<WaitingView> waiting_view;
  std::optional<RestoreAsk> restore_ask;
  std::optional<VersionId> prepared;  // its shard of that was checked in memory since it joined
  std::vector<uint32_t> pins;         // slots that it reads
  struct View {
    std::shared_ptr<OpenView> open;
    std::bitset<kViewPlaces> busy;     // places that are being read into
    std::optional<uint32_t> own_slot;  // pinned
  };
  std::map<uint32_t, View> views;
  uint32_t next_view = 1;
};

/// True once the process behind a pidfd is gone.
bool ProcessGone(int pid_fd);

}  // namespace holdfast::agent
