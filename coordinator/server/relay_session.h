#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "coordinator/api/relay.grpc.pb.h"
#include "coordinator/api/stream_writer.h"
#include "coordinator/server/agent_requests.h"

namespace holdfast::coord {

/// The session of one relay: carries out its batches, and collects the directives and answers for
/// its agents, which Flush() sends as one message. A job state is sent once for all links that get
/// the same one, and a link's group only when the group changes. The applier also owns the session,
/// until it has closed it.
class RelaySession : public StreamWriter<coordinator::RelayDown>,
                     public DirectiveSink,
                     public std::enable_shared_from_this<RelaySession> {
 public:
  struct Owner {
    std::string relay;   // its address, as the relay states it
    std::string caller;  // who opened the session
  };
  /// `dirty` is called when there is something to flush, and `on_end` once, when the call has
  /// ended. `agents` and `clock` outlive the session.
  static std::shared_ptr<RelaySession> Make(uint64_t number, Owner owner, AgentRequests& agents,
                                            const Clock& clock, std::function<void()> dirty,
                                            std::function<void()> on_end);

  uint64_t number() const { return number_; }
  const Owner& owner() const { return owner_; }
  /// Sends the number of the session. Once, before anything else.
  void Begin();
  /// Carries out a batch, once for each number. InvalidArgument: nothing of it is carried out.
  Status Forward(const coordinator::ForwardRequest& batch);
  /// Whether this node is attached through the session.
  bool Has(const std::string& node);
  /// Sends what has collected, unless a message is being sent.
  void Flush() { Next(); }

  /// Of the session itself, which gets no directives: the applier closes it with all others.
  void Push(Epoch /*epoch*/, const Directive& /*directive*/) override {}
  void Close(const Status& why) override;

  void OnCancel() override;
  void OnDone() override;

 private:
  class LinkSink;
  struct JobLink {
    std::optional<GroupPlan> group;  // the one sent last
    size_t waiting = kNone;          // position of the state in waiting_
  };
  struct Link {
    std::string node;
    AttachId attach = 0;
    std::map<std::string, JobLink> jobs;
  };
  /// A directive that waits for the next message.
  struct Waiting {
    std::optional<JobState> state;  // without its group where `keep_group`
    bool keep_group = false;
    coordinator::RelayDirective wire;  // its links, and the directive unless `state` is set
    Epoch epoch;
  };
  static constexpr size_t kNone = SIZE_MAX;

  RelaySession(uint64_t number, Owner owner, AgentRequests& agents, const Clock& clock,
               std::function<void()> dirty, std::function<void()> on_end)
      : number_(number),
        owner_(std::move(owner)),
        agents_(agents),
        clock_(clock),
        dirty_(std::move(dirty)),
        on_end_(std::move(on_end)) {}

  void Attach(uint32_t link, const coordinator::AttachRequest& request);
  void Detach(uint32_t link);
  void Report(uint32_t link, uint64_t call, const coordinator::ReportRequest& request,
              std::vector<StoredReplica> folded);
  void Observe(uint32_t link, uint64_t call, const coordinator::ObserveRequest& request);
  /// Returns the stream of a link with this node; nullopt: the link is not attached.
  std::optional<AttachId> AttachOf(uint32_t link, const std::string& node);

  void PushTo(uint32_t link, Epoch epoch, const Directive& directive);
  void PushState(uint32_t link, Epoch epoch, const JobState& state) HOLDFAST_REQUIRES(mutex_);
  void EndLink(uint32_t link, const Status& why);
  void Answer(uint64_t call, const coordinator::ReportReply* reply);
  /// Moves what has collected into a message.
  std::optional<coordinator::RelayDown> Take() override HOLDFAST_REQUIRES(mutex_);
  void OnWritten() override;
  bool HasWork() const HOLDFAST_REQUIRES(mutex_);
  /// Detaches the agents of the session, once.
  void DetachAll();

  const uint64_t number_;
  const Owner owner_;
  AgentRequests& agents_;
  const Clock& clock_;
  const std::function<void()> dirty_;
  const std::function<void()> on_end_;

  Mutex forward_mutex_;  // one batch after the other
  uint64_t last_batch_ HOLDFAST_GUARDED_BY(forward_mutex_) = 0;

  std::unordered_map<uint32_t, Link> links_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<std::string, uint32_t> nodes_ HOLDFAST_GUARDED_BY(mutex_);  // node → newest link
  coordinator::RelayDirective welcome_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<Waiting> waiting_ HOLDFAST_GUARDED_BY(mutex_);
  coordinator::RelayDown collected_ HOLDFAST_GUARDED_BY(mutex_);  // all but the directives
  bool ended_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast::coord
