#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "agent/pipeline/job_table.h"
#include "agent/pipeline/join_service.h"
#include "agent/pipeline/reader_service.h"
#include "agent/pipeline/restore_service.h"
#include "agent/pipeline/save_service.h"
#include "agent/pipeline/shard_preparer.h"

namespace holdfast::agent {

/// How many connections the agent serves. Root and the user of the agent have no limit of their
/// own.
struct SessionLimits {
  size_t all = 1024;
  size_t reserved = 64;  // of `all`, for root and the user of the agent
  size_t per_user = 256;
  size_t silent_per_user = 64;  // connections without a Hello
  size_t new_per_second = 512;  // of one user
};

/// What the server of the trainers uses. All references outlive it.
struct ServerParts {
  int64_t hello_timeout_ms = 0;
  SessionLimits limits;
  // The services that a trainer's packets go to.
  JoinService& joins;
  SaveService& saves;
  RestoreService& restores;
  ReaderService& readers;
  ShardPreparer& preparer;
  CoordinatorLink& link;
  Clock& clock;
  LoopQueue& loop;
  SessionTable& sessions;
  RankRegistry& ranks;
  const JobTable& jobs;
  WatchedRanks& watched;
  TrainerProcesses& processes;
  ProcessTable& table;
};

/// Serves the trainers that connect to this node: accepts connections, reads and dispatches
/// packets, ends sessions, and reports the trainers to the coordinator. Every number in a packet is
/// checked here or by the service that the packet goes to. Only the node's loop thread uses it,
/// except for session_count().
class TrainerServer final : private SessionControl {
 public:
  explicit TrainerServer(const ServerParts& parts) : parts_(parts) {
    parts_.joins.SetControl(*this);
  }

  /// Serves connections to `listener` from the next Poll() on.
  void Listen(UniqueFd listener) { listener_ = std::move(listener); }
  /// One turn of the loop: waits for packets or posted tasks, at most `timeout_ms`, and handles
  /// them. Then retries the requests that may be answered now, and removes the sessions that have
  /// ended.
  void Poll(int timeout_ms);
  /// Ends silent connections, sends progress notices to joining trainers, and reports the trainers
  /// to the coordinator. Call it about ten times a second.
  void Tick();

  /// Notifies the job's trainers of what has changed between two job states. `before` is empty for
  /// the first state of a job: then every commit in `now` counts as new.
  void OnJobState(const JobState& before, const JobState& now);
  /// Ends all sessions, whose trainers must join again.
  void EndAll(std::string_view why);

  uint32_t session_count() const { return session_count_.load(std::memory_order_relaxed); }

 private:
  // SessionControl
  void ReadPackets(Session& session) override;
  void EndSession(Session& session, std::string_view why) override;
  void OnReady(Session& session) override;

  void Accept();
  void DropSilent(uid_t uid);
  /// Whether the limits permit one more connection of this user.
  bool Admits(uid_t uid);
  /// Whether this user has begun few connections within the last second.
  bool KeepsPace(uid_t uid);
  void Serve(Session& session, int socket_events, bool dead);
  void Handle(Session& session, std::span<const std::byte> packet);
  void Dispatch(Session& session, MessageType type, std::span<const std::byte> packet);
  void HandleWantTier(Session& session, const EndSaveMessage& message);
  void NotifyCommitted(Session& session, const JobState& before, const JobState& now);
  void Retry(Session& session);
  void SweepClosed();
  void ReportRanks();

  /// How many connections a user began within the current second.
  struct Pace {
    Clock::TimePoint since;
    size_t begun = 0;
  };
  const ServerParts parts_;
  UniqueFd listener_;
  std::map<uid_t, Pace> paces_;
  std::atomic<uint32_t> session_count_{0};
};

}  // namespace holdfast::agent
