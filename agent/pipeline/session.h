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
class VersionReader;

/// A version reader that a trainer has open, with the memory that both share. Each read in progress
/// keeps both alive.
struct OpenReader {
  /// Reads bytes of a shard into a place, which no other read uses at the same time. A place gets
  /// its memory at the first read, since most trainers need few of the places or none.
  Status Read(Rank rank, uint64_t offset, uint32_t place, uint64_t bytes);

  std::shared_ptr<VersionReader> reader;
  MemoryFile memory;
  std::array<uint64_t, kReadPlaces> allocated{};  // bytes of each place
};

/// A BeginSave that waits for a slot.
struct WaitingSave {
  uint64_t ticket = 0;
  uint64_t step = 0;
  uint64_t image_bytes = 0;
  bool skipping = false;
  Clock::TimePoint deadline;
};

/// A FindRestore that has been decided and whose shard is being brought into memory.
struct WaitingRestore {
  uint64_t ticket = 0;
  RestoreDecision decision;
  Clock::TimePoint deadline;
};

/// An OpenReader that has been decided, while this rank's own shard is being brought into memory.
struct WaitingReader {
  uint64_t ticket = 0;
  RestoreDecision decision;
  Clock::TimePoint deadline;
};

/// A FindRestore that the coordinator has not decided yet.
struct PendingRestore {
  uint64_t ticket = 0;
  RestoreRequest request;
  Clock::TimePoint deadline;
  bool under_way = false;  // false: the request is repeated at `retry_at`
  Clock::TimePoint retry_at;
};

/// One connected trainer: its socket, its identity from the Hello and its waiting requests. Only
/// the node's loop thread uses it.
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

  /// Sends a packet now, or as soon as the trainer reads. Does nothing after the trainer has closed
  /// the connection. Returns false when the backlog is full and the session must end.
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
  Clock::TimePoint joins_since;    // start of kJoining
  Clock::TimePoint next_progress;  // of the next kReserving notice
  Incarnation incarnation;
  // Shared with data readers and workers, which may use it after the node has dropped the rank.
  std::shared_ptr<RankPipeline> pipeline;
  bool fenced = false;
  bool goodbye = false;
  bool starved = false;  // a save was refused because no slot was free
  std::deque<WaitingSave> waiting_saves;
  std::vector<WaitingRestore> waiting_restores;
  std::optional<WaitingReader> waiting_reader;
  std::optional<PendingRestore> pending_restore;
  std::optional<VersionId> prepared;  // this rank's shard of it was verified since the join
  std::vector<uint32_t> pins;         // slots that the trainer restores from
  struct Reader {
    std::shared_ptr<OpenReader> open;
    std::bitset<kReadPlaces> busy;     // places with a read in progress
    std::optional<uint32_t> own_slot;  // pinned
  };
  std::map<uint32_t, Reader> readers;
  uint32_t next_reader = 1;
};

/// Returns true once the process of a pidfd has ended.
bool ProcessGone(int pid_fd);

}  // namespace holdfast::agent
