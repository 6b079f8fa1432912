#pragma once

#include <bitset>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/api/messages.h"
#include "agent/api/socket.h"
#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/rank_pipeline.h"
#include "base/clock.h"

namespace holdfast::agent {

struct OpenReader;

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

/// An OpenReader or OpenVersion that has been decided, while this rank's own shard is being brought
/// into memory.
struct WaitingReader {
  uint64_t ticket = 0;
  bool all_shards = false;  // OpenReader: the listing has all shards
  RestoreDecision decision;
  Clock::TimePoint deadline;
};

/// A FindRestore that the coordinator has not decided yet.
struct PendingRestore {
  uint64_t ticket = 0;
  MessageType type = MessageType::kFindRestore;
  RestoreRequest request;
  Clock::TimePoint deadline;
  bool under_way = false;  // false: the request is repeated at `retry_at`
  Clock::TimePoint retry_at;
};

/// One connected trainer: its socket, its identity from the Hello and its waiting requests. Each
/// service that serves trainers has its own group of fields. Only the node's loop thread uses it.
class Session {
 public:
  enum class State { kHello, kJoining, kReady, kClosing };

  Session(uint64_t id, UniqueFd socket, UniqueFd pid_fd, const PeerCredentials& peer,
          Clock::TimePoint hello_deadline)
      : deadline(hello_deadline),
        id_(id),
        socket_(std::move(socket)),
        pid_fd_(std::move(pid_fd)),
        peer_(peer) {}

  uint64_t id() const { return id_; }
  int socket() const { return socket_.get(); }
  int pid_fd() const { return pid_fd_.get(); }
  Result<UniqueFd> DuplicatePidFd() const;
  const PeerCredentials& peer() const { return peer_; }

  /// Sends a packet now, or as soon as the trainer reads. Does nothing after the trainer has closed
  /// the connection. Closes the session when the backlog is full.
  void Send(std::span<const std::byte> packet, std::span<const int> fds = {});
  template <typename Message>
  void SendMessage(const Message& message, std::span<const int> fds = {}) {
    Send(std::as_bytes(std::span(&message, 1)), fds);
  }
  /// Answers the request with this ticket. The reply has a status and no data.
  void Reply(uint64_t ticket, const Status& status);
  void Notify(NoticeKind kind, VersionId version, Tier tier, const Status& status = Status::Ok());
  bool has_backlog() const { return !backlog_.empty(); }
  void FlushBacklog();

  /// Ends the session; the trainer server removes it at the end of the loop's turn. Of several
  /// reasons, the first one is kept.
  void Close(std::string_view why);
  const std::string& closed_because() const { return closed_because_; }

  State state = State::kHello;
  /// Set after any change that may allow a waiting request to be answered. The trainer server then
  /// retries the session's requests at the end of the loop's turn.
  bool retry_due = false;

  // From the Hello and the join.
  Clock::TimePoint deadline;  // of the Hello
  std::string job;
  std::string run_id;
  Rank rank;
  uint32_t world = 0;
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;
  Clock::TimePoint joins_since;            // start of kJoining
  Clock::TimePoint next_progress;          // of the next kReserving notice
  std::optional<Incarnation> incarnation;  // from the coordinator's answer on; in kReady always
  RankLease pipeline;                      // from kReady on
  bool fenced = false;
  bool goodbye = false;
  bool left = false;  // its end has been handled

  struct Saves {
    std::deque<WaitingSave> waiting;
    bool starved = false;  // a save was refused because no slot was free
  };
  Saves saves;

  struct Restores {
    std::optional<PendingRestore> pending;
    std::vector<WaitingRestore> waiting;
    std::vector<uint32_t> pins;         // slots that the trainer restores from
    std::optional<VersionId> prepared;  // this rank's shard of it was verified since the join
  };
  Restores restores;

  struct Reader {
    std::shared_ptr<OpenReader> open;
    std::bitset<kReadPlaces> busy;     // places with a read in progress
    std::optional<uint32_t> own_slot;  // pinned
  };
  struct Readers {
    std::optional<WaitingReader> waiting;
    std::map<uint32_t, Reader> open;
    uint32_t next_number = 1;
  };
  Readers readers;

 private:
  bool TrySend(std::span<const std::byte> packet, std::span<const int> fds);

  const uint64_t id_;
  const UniqueFd socket_;
  const UniqueFd pid_fd_;
  const PeerCredentials peer_;
  std::deque<std::vector<std::byte>> backlog_;
  std::string closed_because_;
};

/// Returns true once the process of a pidfd has ended.
bool ProcessGone(int pid_fd);

}  // namespace holdfast::agent
