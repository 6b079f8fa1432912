#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "coordinator/api/leader_channel.h"
#include "coordinator/api/relay.grpc.pb.h"

namespace holdfast::coord::relay {

struct UpstreamOptions {
  std::string cluster;
  std::string relay;  // the address of this relay, for the coordinator's log
  /// Messages are refused while more bytes are pending: the coordinator is behind, and agents
  /// repeat their reports.
  size_t pending_bytes_max = 256 << 20;
};

/// The coordinator that leads, as a relay knows it.
struct Leading {
  uint64_t life = 0;
  uint64_t epoch = 0;
  std::string address;
};

/// Gets what the coordinator sends. Threads: the one that reads the session.
class DownReceiver {
 public:
  virtual ~DownReceiver() = default;
  virtual void OnDirective(const coordinator::RelayDirective& directive) = 0;
  virtual void OnEnd(const coordinator::RelayEnd& end) = 0;
  /// The session has ended, and with it all links.
  virtual void OnLost(const Status& why) = 0;
};

/// The session of this relay with the coordinator that leads. One thread keeps the session open and
/// reads it; the other sends what has collected, as one batch after the other. A coordinator that
/// does not take a batch in time is silent: calls end as Unavailable, so that agents keep what they
/// report, and the other coordinators are asked who leads. All that is here is soft state.
/// Thread-safe.
class Upstream {
 public:
  /// What all answers of one message share.
  struct Shared {
    int64_t wall_nanos = 0;  // the coordinator's clock
    uint32_t report_pause_ms = 0;
    uint32_t observe_pause_ms = 0;
  };
  /// Gets the answer of the coordinator, or null: the outcome is not known.
  using Answered = std::function<void(const coordinator::RelayAnswer*, const Shared&)>;
  using LeadingAnswer = std::function<void(const std::optional<Leading>&)>;

  Upstream(UpstreamOptions options, std::unique_ptr<LeaderChannel> coordinators,
           const Clock& clock);
  ~Upstream();

  /// `receiver` outlives the threads, which Stop() ends.
  void Start(DownReceiver& receiver);
  /// Ends the session. All calls have their answers when this returns.
  void Stop();

  /// Sends a message without an answer. Returns false if there is no session.
  bool Send(coordinator::RelayItem item);
  /// Sends a message and calls `answered` once, possibly at once.
  void Call(coordinator::RelayItem item, Answered answered);
  /// Calls `answer` with the leader once a session is open, and with nothing after a while.
  void AwaitLeading(LeadingAnswer answer);
  std::optional<Leading> leading();
  /// What has happened since the start, and what is pending now.
  struct Counts {
    bool connected = false;
    size_t pending_bytes = 0;
    uint64_t sessions = 0;
    uint64_t messages = 0;  // in batches that the coordinator has taken
    uint64_t batches = 0;
    uint64_t refused = 0;  // messages
  };
  Counts counts();
  /// Returns how long there has been no session; zero while there is one.
  Clock::Duration absent_for();
  /// For calls that are passed on: the coordinator that leads, or that did last.
  LeaderChannel::Stub& stub() { return coordinators_->stub(); }

 private:
  struct Batch {
    uint64_t session = 0;
    size_t coordinator = 0;
    coordinator::ForwardRequest request;
    uint64_t messages = 0;
  };
  struct Waiter {
    Clock::TimePoint until;
    LeadingAnswer answer;
  };

  void SessionLoop();
  Status SessionOnce();
  std::optional<Leading> Ask(size_t coordinator, grpc::ClientContext* context);
  /// Begins the session once the coordinator has stated its epoch. Returns false if it does not
  /// lead.
  bool Begin(uint64_t session, size_t coordinator);
  void Receive(const coordinator::RelayDown& down);
  /// Forgets the session, and answers its calls.
  void EndSession();
  void SendLoop();
  /// Waits for messages; nothing: the thread ends, or only time has passed.
  std::optional<Batch> Take();
  void SendBatch(Batch& batch);
  void Count(const Batch& taken);
  /// Answers all calls, which their agents repeat, and refuses further ones.
  void BeSilent();
  /// Ends the session if another coordinator leads with a later epoch.
  void SearchLeader();
  void CancelSession(uint64_t session);
  void AnswerWaiters();
  bool Pause(std::chrono::milliseconds time);

  const UpstreamOptions options_;
  const std::unique_ptr<LeaderChannel> coordinators_;
  const Clock& clock_;
  DownReceiver* receiver_ = nullptr;

  Mutex mutex_;
  CondVar wake_;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  uint64_t session_ HOLDFAST_GUARDED_BY(mutex_) = 0;  // 0: none
  std::optional<Leading> leading_ HOLDFAST_GUARDED_BY(mutex_);
  Clock::TimePoint absent_since_ HOLDFAST_GUARDED_BY(mutex_);
  grpc::ClientContext* reading_ HOLDFAST_GUARDED_BY(mutex_) = nullptr;
  grpc::ClientContext* asking_ HOLDFAST_GUARDED_BY(mutex_) = nullptr;   // of the session's thread
  grpc::ClientContext* sending_ HOLDFAST_GUARDED_BY(mutex_) = nullptr;  // of the sender's thread
  bool silent_ HOLDFAST_GUARDED_BY(mutex_) = false;
  uint64_t next_batch_ HOLDFAST_GUARDED_BY(mutex_) = 1;
  uint64_t next_call_ HOLDFAST_GUARDED_BY(mutex_) = 1;
  std::deque<coordinator::RelayItem> pending_ HOLDFAST_GUARDED_BY(mutex_);
  size_t pending_bytes_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, Answered> calls_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<Waiter> waiters_ HOLDFAST_GUARDED_BY(mutex_);
  Counts counts_ HOLDFAST_GUARDED_BY(mutex_);  // without what is pending now

  std::thread session_thread_;
  std::thread send_thread_;
};

}  // namespace holdfast::coord::relay
