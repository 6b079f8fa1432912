#include "coordinator/server/relay_session.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "coordinator/api/convert.h"
#include "coordinator/server/agent_sink.h"

namespace holdfast::coord {
namespace {
/// How many waiting job states a new one is compared with: those of the jobs that change most.
constexpr size_t kComparedMax = 16;

Status NotAttached() { return FencedError("the agent is not attached through this relay"); }

/// Replicas by the position of the report that they belong to.
using Unfolded = std::map<uint32_t, std::vector<StoredReplica>>;

Status Unfold(const pb::FoldedReplicas& folded, Unfolded& out) {
  const int count = folded.items_size();
  if (folded.ranks_size() != count || folded.digests_size() != count ||
      folded.image_bytes_size() != count) {
    return InvalidArgumentError("folded replicas with lists of different lengths");
  }
  pb::StoredReplica one;
  one.set_job(folded.job());
  *one.mutable_version() = folded.version();
  one.set_world(folded.world());
  one.set_tier(folded.tier());
  one.set_life(folded.life());
  for (int i = 0; i < count; ++i) {
    one.set_rank(folded.ranks(i));
    one.set_digest(folded.digests(i));
    one.set_image_bytes(folded.image_bytes(i));
    HOLDFAST_ASSIGN_OR_RETURN(StoredReplica replica, FromProto(one));
    out[folded.items(i)].push_back(std::move(replica));
  }
  return Status::Ok();
}
}  // namespace

/// Where the applier sends the directives of one link.
class RelaySession::LinkSink : public DirectiveSink {
 public:
  LinkSink(std::shared_ptr<RelaySession> session, uint32_t link)
      : session_(std::move(session)), link_(link) {}
  void Push(Epoch epoch, const Directive& directive) override {
    session_->PushTo(link_, epoch, directive);
  }
  void Close(const Status& why) override { session_->EndLink(link_, why); }

 private:
  const std::shared_ptr<RelaySession> session_;
  const uint32_t link_;
};

std::shared_ptr<RelaySession> RelaySession::Make(uint64_t number, Owner owner,
                                                 AgentRequests& agents, const Clock& clock,
                                                 std::function<void()> dirty,
                                                 std::function<void()> on_end) {
  std::shared_ptr<RelaySession> session(new RelaySession(number, std::move(owner), agents, clock,
                                                         std::move(dirty), std::move(on_end)));
  session->BelongToCall(session);
  return session;
}

void RelaySession::Begin() {
  {
    MutexLock lock(mutex_);
    collected_.set_session(number_);
  }
  dirty_();
}

// ---- from the relay ----

Status RelaySession::Forward(const pb::ForwardRequest& batch) {
  MutexLock order(forward_mutex_);
  if (batch.number() <= last_batch_) return Status::Ok();  // the relay did not get the answer
  Unfolded replicas;
  for (const pb::FoldedReplicas& folded : batch.folded()) {
    HOLDFAST_RETURN_IF_ERROR(Unfold(folded, replicas));
  }
  last_batch_ = batch.number();
  for (int i = 0; i < batch.items_size(); ++i) {
    const pb::RelayItem& item = batch.items(i);
    switch (item.kind_case()) {
      case pb::RelayItem::kAttach:
        Attach(item.link(), item.attach());
        break;
      case pb::RelayItem::kDetach:
        Detach(item.link());
        break;
      case pb::RelayItem::kReport: {
        const auto folded = replicas.find(static_cast<uint32_t>(i));
        Report(item.link(), item.call(), item.report(),
               folded == replicas.end() ? std::vector<StoredReplica>() : std::move(folded->second));
        break;
      }
      case pb::RelayItem::kObserve:
        Observe(item.link(), item.call(), item.observe());
        break;
      case pb::RelayItem::KIND_NOT_SET:
        break;  // of a newer relay
    }
  }
  return Status::Ok();
}

void RelaySession::Attach(uint32_t link, const pb::AttachRequest& request) {
  const Status attached = agents_.Attach(request, owner_.relay, [&](AttachId attach) {
    MutexLock lock(mutex_);
    links_[link] = {request.node(), attach, {}};
    nodes_[request.node()] = link;
    return std::make_shared<LinkSink>(shared_from_this(), link);
  });
  if (attached.ok()) return;
  Log(LogLevel::kWarn, "AttachRefused",
      {Kv("node", request.node()), Kv("relay", owner_.relay), Kv("why", attached.ToString())});
  EndLink(link, attached);
}

void RelaySession::Detach(uint32_t link) {
  Link detached;
  {
    MutexLock lock(mutex_);
    const auto found = links_.find(link);
    if (found == links_.end()) return;
    detached = found->second;
  }
  agents_.Detach(detached.node, detached.attach);
}

std::optional<AttachId> RelaySession::AttachOf(uint32_t link, const std::string& node) {
  MutexLock lock(mutex_);
  const auto found = links_.find(link);
  if (found == links_.end() || found->second.node != node) return std::nullopt;
  return found->second.attach;
}

bool RelaySession::Has(const std::string& node) {
  MutexLock lock(mutex_);
  return nodes_.contains(node);
}

void RelaySession::Report(uint32_t link, uint64_t call, const pb::ReportRequest& request,
                          std::vector<StoredReplica> folded) {
  const std::optional<AttachId> attach = AttachOf(link, request.node());
  if (!attach) {
    pb::ReportReply refused;
    ToProto(NotAttached(), refused.mutable_outcome());
    return Answer(call, &refused);
  }
  agents_.Report(request, {attach, std::move(folded)},
                 [self = shared_from_this(), call](const pb::ReportReply* reply) {
                   self->Answer(call, reply);
                 });
}

void RelaySession::Observe(uint32_t link, uint64_t call, const pb::ObserveRequest& request) {
  pb::ObserveReply reply;
  if (AttachOf(link, request.node()) == 0) {
    ToProto(NotAttached(), reply.mutable_outcome());
  } else {
    reply = agents_.Observe(request);
  }
  const bool plain = reply.outcome().code() == 0 && reply.samples().empty();
  {
    MutexLock lock(mutex_);
    if (plain) {
      collected_.add_done(call);
      collected_.set_observe_pause_ms(reply.pause_ms());
    } else {
      pb::RelayAnswer* answer = collected_.add_answers();
      answer->set_call(call);
      *answer->mutable_observe() = std::move(reply);
    }
  }
  dirty_();
}

// ---- to the relay ----

void RelaySession::Answer(uint64_t call, const pb::ReportReply* reply) {
  {
    MutexLock lock(mutex_);
    if (reply != nullptr && reply->outcome().code() == 0 && reply->self_test() == 0) {
      collected_.add_done(call);
      collected_.set_report_pause_ms(reply->pause_ms());
    } else {
      pb::RelayAnswer* answer = collected_.add_answers();
      answer->set_call(call);
      if (reply == nullptr) {
        answer->set_unknown(true);
      } else {
        *answer->mutable_report() = *reply;
      }
    }
  }
  dirty_();
}

void RelaySession::PushTo(uint32_t link, Epoch epoch, const Directive& directive) {
  {
    MutexLock lock(mutex_);
    if (closing_ || !links_.contains(link)) return;
    if (const auto* state = std::get_if<JobState>(&directive)) {
      PushState(link, epoch, *state);
    } else if (std::holds_alternative<Welcome>(directive)) {
      // Before everything else for the link: the states of several links are one directive.
      welcome_.add_links(link);
      *welcome_.mutable_directive() = ToWire(epoch, directive);
    } else {
      Waiting& waiting = waiting_.emplace_back();
      waiting.wire.add_links(link);
      *waiting.wire.mutable_directive() = ToWire(epoch, directive);
    }
  }
  dirty_();
}

void RelaySession::PushState(uint32_t link, Epoch epoch, const JobState& pushed) {
  JobLink& job = links_[link].jobs[pushed.job];
  JobState state = pushed;
  const bool known = job.waiting != kNone || job.group.has_value();
  const bool keep_group = known && job.group == state.group;
  if (keep_group) {
    state.group.reset();
  } else {
    job.group = state.group;
  }
  // A newer state replaces the one that waits. A group that waits must be sent with it.
  if (job.waiting != kNone) {
    Waiting& before = waiting_[job.waiting];
    auto* links = before.wire.mutable_links();
    links->erase(std::remove(links->begin(), links->end(), link), links->end());
    if (keep_group && !before.keep_group) {
      state.group = job.group;
      Waiting& waiting = waiting_.emplace_back();
      waiting.wire.add_links(link);
      waiting.state = std::move(state);
      waiting.epoch = epoch;
      job.waiting = waiting_.size() - 1;
      return;
    }
  }
  const size_t compared = waiting_.size() - std::min(waiting_.size(), kComparedMax);
  for (size_t i = waiting_.size(); i > compared; --i) {
    Waiting& waiting = waiting_[i - 1];
    if (waiting.keep_group != keep_group || waiting.epoch != epoch || waiting.state != state) {
      continue;
    }
    waiting.wire.add_links(link);
    job.waiting = i - 1;
    return;
  }
  Waiting& waiting = waiting_.emplace_back();
  waiting.wire.add_links(link);
  waiting.state = std::move(state);
  waiting.keep_group = keep_group;
  waiting.epoch = epoch;
  job.waiting = waiting_.size() - 1;
}

void RelaySession::EndLink(uint32_t link, const Status& why) {
  {
    MutexLock lock(mutex_);
    const auto found = links_.find(link);
    if (found != links_.end()) {
      const auto node = nodes_.find(found->second.node);
      if (node != nodes_.end() && node->second == link) nodes_.erase(node);
      links_.erase(found);
    }
    pb::RelayEnd* end = collected_.add_ends();
    end->set_link(link);
    ToProto(why, end->mutable_why());
  }
  dirty_();
}

bool RelaySession::HasWork() const {
  return !waiting_.empty() || !welcome_.links().empty() || collected_.done_size() > 0 ||
         collected_.answers_size() > 0 || collected_.ends_size() > 0 || collected_.session() != 0;
}

std::optional<pb::RelayDown> RelaySession::Take() {
  if (!HasWork()) return std::nullopt;
  pb::RelayDown message = std::exchange(collected_, {});
  message.set_wall_nanos(clock_.WallNanos());
  if (!welcome_.links().empty()) *message.add_directives() = std::exchange(welcome_, {});
  for (Waiting& waiting : waiting_) {
    if (waiting.wire.links().empty()) continue;
    if (waiting.state) {
      const JobState& state = *waiting.state;
      for (const uint32_t link : waiting.wire.links()) {
        const auto found = links_.find(link);
        if (found != links_.end()) found->second.jobs[state.job].waiting = kNone;
      }
      *waiting.wire.mutable_directive() = ToWire(waiting.epoch, Directive(state));
      waiting.wire.set_keep_group(waiting.keep_group);
    }
    *message.add_directives() = std::move(waiting.wire);
  }
  waiting_.clear();
  return message;
}

void RelaySession::OnWritten() {
  bool more = false;
  {
    MutexLock lock(mutex_);
    more = HasWork();
  }
  if (more) dirty_();
}

void RelaySession::Close(const Status& why) { End(ToGrpc(why)); }

void RelaySession::DetachAll() {
  std::unordered_map<uint32_t, Link> links;
  {
    MutexLock lock(mutex_);
    if (std::exchange(ended_, true)) return;
    links = links_;
  }
  for (const auto& [number, link] : links) agents_.Detach(link.node, link.attach);
  on_end_();
}

void RelaySession::OnCancel() {
  DetachAll();
  Close(CancelledError("the relay disconnected"));
}

void RelaySession::OnDone() {
  DetachAll();
  StreamWriter::OnDone();
}

}  // namespace holdfast::coord
