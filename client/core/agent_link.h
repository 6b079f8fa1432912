#pragma once

#include <holdfast/holdfast.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "agent/api/messages.h"
#include "base/fd.h"
#include "base/mutex.h"
#include "base/status.h"
#include "client/core/segment_mapping.h"
#include "client/core/threads.h"

namespace holdfast::client {

/// The agent measures the time-out of a request for a version itself. Its answer, which then has
/// the reason, may arrive this much later.
inline constexpr std::chrono::milliseconds kAnswerSlack(1000);
/// Pause before a request for a version is repeated that an agent could not serve: agents that
/// restart, and nodes that attach again, take a few hundred milliseconds.
inline constexpr std::chrono::milliseconds kRetryPause(200);

/// Receives the link's events. The link's thread makes all calls, with no lock held. The thread
/// that stops the link may also call OnUnmapping.
class LinkObserver {
 public:
  virtual ~LinkObserver() = default;
  virtual void OnConnected(uint64_t incarnation, bool first) = 0;
  /// The connection is lost. Calls made over it have failed; copies over it are being cancelled.
  virtual void OnDisconnected(const Status& reason) = 0;
  virtual void OnNotice(const agent::NoticeMessage& notice) = 0;
  virtual void OnMapped(std::byte* base, uint64_t bytes) = 0;
  virtual void OnUnmapping(std::byte* base) = 0;
  virtual void OnLog(int level, const std::string& text) = 0;
};

/// The connection to this node's agent. Its thread connects, sends Hello, maps the segment and
/// dispatches messages. After a lost connection it connects again, with growing pauses. The mapping
/// is kept when the agent offers the same memory again. Thread-safe.
class AgentLink {
 public:
  /// `observer` outlives the link. `hello` is sent at every connection.
  AgentLink(std::string socket_path, const agent::HelloMessage& hello, LinkObserver& observer);
  ~AgentLink();

  Status Start();
  /// Ends every call and copy as Cancelled, before the owner closes.
  void Interrupt();
  /// Sends Goodbye, joins the thread and unmaps. No Use may exist any more.
  void Stop();

  /// Returns OK while connected, otherwise the reason.
  Status status() const;
  /// Blocks until connected. Returns a permanent refusal at once, and Unavailable with the last
  /// reason when the time is over. Each notice that the agent is reserving the memory restarts the
  /// time.
  Status AwaitConnected(MonotonicTime deadline);
  /// Returns for how long the oldest answer has been overdue, since its call timed out; 0 when none
  /// is overdue.
  uint64_t silent_ms() const;

  /// The right to access the segment over the current connection. The mapping stays while a Use
  /// exists. When the connection is lost, alive() becomes false, and the holder must end soon.
  class Use {
   public:
    Use(Use&& other) noexcept : link_(std::exchange(other.link_, nullptr)), epoch_(other.epoch_) {}
    Use& operator=(Use&&) = delete;
    ~Use() {
      if (link_ != nullptr) link_->Leave();
    }
    bool alive() const { return link_->epoch_.load(std::memory_order_acquire) == epoch_; }
    const SegmentMapping& segment() const { return link_->mapping_; }
    uint64_t incarnation() const { return link_->incarnation_.load(std::memory_order_relaxed); }
    /// A number that depends on the node's name.
    uint32_t node_turn() const { return link_->node_turn_.load(std::memory_order_relaxed); }
    /// Whether the agent answers OpenVersion and ReadIndex.
    bool opens_versions() const { return link_->opens_versions_.load(std::memory_order_relaxed); }
    /// Identifies the connection; not 0.
    uint64_t epoch() const { return epoch_; }

   private:
    friend class AgentLink;
    Use(AgentLink* link, uint64_t epoch) : link_(link), epoch_(epoch) {}
    AgentLink* link_;
    uint64_t epoch_;
  };
  /// Returns Unavailable, or the agent's permanent refusal, when not connected.
  Result<Use> Enter();

  /// Sends a request and waits for its answer, which may have any code. DeadlineExceeded: no
  /// answer came; if it comes later, the link gives the granted slot or reader back. Unavailable:
  /// the connection was lost. `memory`, if given, gets the descriptor that came with the answer.
  template <typename Message>
  Result<agent::ReplyMessage> Call(const Use& use, Message message, MonotonicTime deadline,
                                   UniqueFd* memory = nullptr) {
    message.header.ticket = NextTicket();
    uint64_t step = 0;
    if constexpr (requires { message.step; }) step = message.step;
    return CallBytes(use, std::as_bytes(std::span(&message, 1)), message.header, step, deadline,
                     memory);
  }
  /// Sends a message that has no answer.
  template <typename Message>
  Status Send(const Use& use, const Message& message) {
    return SendBytes(use, std::as_bytes(std::span(&message, 1)));
  }

 private:
  struct PendingCall {
    agent::MessageType type = agent::MessageType::kBeginSave;
    uint64_t step = 0;
    bool abandoned = false;
    MonotonicTime abandoned_at;
    std::optional<Status> failure;
    std::optional<agent::ReplyMessage> reply;
    UniqueFd memory;  // that came with the reply
  };

  uint64_t NextTicket() { return ticket_.fetch_add(1, std::memory_order_relaxed); }
  Result<agent::ReplyMessage> CallBytes(const Use& use, std::span<const std::byte> bytes,
                                        const agent::MessageHeader& header, uint64_t step,
                                        MonotonicTime deadline, UniqueFd* memory);
  Status SendBytes(const Use& use, std::span<const std::byte> bytes);
  void UndoLocked(const PendingCall& call, const agent::ReplyMessage& reply)
      HOLDFAST_REQUIRES(mutex_);
  Status SendLocked(uint64_t epoch, std::span<const std::byte> bytes) HOLDFAST_REQUIRES(mutex_);
  void Leave();
  /// Blocks until a message of `type` may be sent: while a request for a restore decision has
  /// no answer, no other decision is requested.
  Status AwaitTurn(const Use& use, agent::MessageType type, MonotonicTime deadline)
      HOLDFAST_REQUIRES(mutex_);
  /// Waits for a change, at most until `deadline`. Calls the thread's stop check, without the lock,
  /// and returns Cancelled when it requests a stop.
  Status AwaitChange(MonotonicTime deadline) HOLDFAST_REQUIRES(mutex_);

  void Run();
  /// Runs one connection from connect to hang-up and returns why it ended. Sets `refused` when the
  /// agent refused it.
  Status RunConnection(bool* refused);
  Status AwaitWelcome(int socket, agent::WelcomeMessage* welcome, UniqueFd* memory, bool* refused);
  bool IsProgress(const agent::MessageHeader& header, std::span<const std::byte> packet);
  Status TakeSegment(const agent::WelcomeMessage& welcome, const UniqueFd& memory);
  Status Dispatch(int socket);
  void OnReply(const agent::ReplyMessage& reply, UniqueFd memory);
  void Disconnect(const Status& reason);
  /// Waits for the stop signal. Returns false when the time ran out first.
  bool AwaitStop(uint64_t timeout_ms);
  /// Returns false when the link stops instead.
  bool AwaitReadable(int socket);
  void RecordFailure(const Status& reason, bool refused, bool* final);

  const std::string socket_path_;
  const agent::HelloMessage hello_;
  LinkObserver& observer_;
  UniqueFd stop_event_;
  std::thread thread_;
  std::atomic<uint64_t> ticket_{1};
  std::atomic<uint64_t> epoch_{0};  // changes at every connect, disconnect and interrupt
  std::atomic<uint64_t> incarnation_{0};
  std::atomic<bool> opens_versions_{false};
  std::atomic<uint32_t> node_turn_{0};
  SegmentMapping mapping_;  // changed by the link's thread, and only while there are no users

  mutable Mutex mutex_;
  CondVar changed_;
  UniqueFd socket_ HOLDFAST_GUARDED_BY(mutex_);
  bool connected_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool ever_connected_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  bool permanent_ HOLDFAST_GUARDED_BY(mutex_) = false;  // waiting does not change status_
  Status status_ HOLDFAST_GUARDED_BY(mutex_);
  std::optional<MonotonicTime> progress_at_ HOLDFAST_GUARDED_BY(mutex_);
  Status logged_ HOLDFAST_GUARDED_BY(mutex_);  // a reason is logged once, not at every attempt
  uint32_t users_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, PendingCall> calls_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::client
