#include "coordinator/relay/agent_service.h"

#include <fmt/format.h>

#include <vector>

#include "coordinator/api/caller.h"
#include "coordinator/api/channel.h"
#include "coordinator/api/convert.h"
#include "coordinator/api/refused_stream.h"

namespace holdfast::coord::relay {
namespace {
namespace rpc = grpc::experimental;

/// After a session has ended, agents wait here for the next one for this long.
constexpr std::chrono::seconds kKeepAgents(10);
/// Left of a message's limit for what a batch adds to an inventory.
constexpr size_t kBatchOverhead = 64 << 10;

grpc::Status NoAnswer() {
  return {grpc::StatusCode::UNAVAILABLE, "the relay has no answer of the coordinator; try again"};
}

/// A call that is passed on. The agent's deadline and its end of the call apply to both.
class PassedCall : public grpc::ServerUnaryReactor {
 public:
  explicit PassedCall(const grpc::CallbackServerContext& context)
      : context_(grpc::ClientContext::FromCallbackServerContext(context)) {}
  grpc::ClientContext* context() { return context_.get(); }
  void OnDone() override { std::unique_ptr<PassedCall> last(this); }

 private:
  const std::unique_ptr<grpc::ClientContext> context_;
};

template <typename Reply>
grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context, Reply* reply,
                                 const Status& why) {
  ToProto(why, reply->mutable_outcome());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

class Redirect : public rpc::Interceptor {
 public:
  explicit Redirect(Upstream& upstream) : upstream_(upstream) {}

  void Intercept(rpc::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(rpc::InterceptionHookPoints::PRE_SEND_STATUS) &&
        methods->GetSendStatus().error_code() == grpc::StatusCode::UNIMPLEMENTED) {
      const auto leading = upstream_.leading();
      const std::string leader = leading ? leading->address : std::string(kNoLeader);
      methods->GetSendTrailingMetadata()->insert({kLeaderMetadata, leader});
      methods->ModifySendStatus(
          {grpc::StatusCode::UNAVAILABLE,
           fmt::format("this is a relay, which serves agents only; use a coordinator: {}",
                       leading ? leading->address : "none leads now")});
    }
    methods->Proceed();
  }

 private:
  Upstream& upstream_;
};

class RedirectFactory : public rpc::ServerInterceptorFactoryInterface {
 public:
  explicit RedirectFactory(Upstream& upstream) : upstream_(upstream) {}
  rpc::Interceptor* CreateServerInterceptor(rpc::ServerRpcInfo* /*call*/) override {
    return std::make_unique<Redirect>(upstream_).release();  // gRPC owns it
  }

 private:
  Upstream& upstream_;
};
}  // namespace

std::unique_ptr<rpc::ServerInterceptorFactoryInterface> MakeRedirects(Upstream& upstream) {
  return std::make_unique<RedirectFactory>(upstream);
}

grpc::ServerWriteReactor<pb::RelayDown>* RefusingRelays::Open(
    grpc::CallbackServerContext* /*context*/, const pb::OpenRelayRequest* /*request*/) {
  const Status why = FailedPreconditionError(fmt::format(
      "the server at {} is a relay; `upstream` of a relay names coordinators", own_address_));
  return RefusedStream<pb::RelayDown>::Make(why);
}

// ---- links ----

size_t AgentService::agents() {
  MutexLock lock(mutex_);
  return agents_.size();
}

uint32_t AgentService::LinkOf(const std::string& node, uint64_t agent_start) {
  MutexLock lock(mutex_);
  const auto found = agents_.find({node, agent_start});
  return found == agents_.end() ? 0 : found->second;
}

std::shared_ptr<DirectiveStream> AgentService::Remove(uint32_t link) {
  MutexLock lock(mutex_);
  const auto found = links_.find(link);
  if (found == links_.end()) return nullptr;
  const auto agent = agents_.find({found->second.node, found->second.agent_start});
  if (agent != agents_.end() && agent->second == link) agents_.erase(agent);
  std::shared_ptr<DirectiveStream> stream = std::move(found->second.stream);
  links_.erase(found);
  return stream;
}

void AgentService::OnStreamEnd(uint32_t link) {
  if (Remove(link) == nullptr) return;
  pb::RelayItem item;
  item.set_link(link);
  item.set_detach(true);
  upstream_.Send(std::move(item));
}

void AgentService::OnDirective(const pb::RelayDirective& directive) {
  std::vector<std::pair<std::shared_ptr<DirectiveStream>, pb::Directive>> sent;
  {
    MutexLock lock(mutex_);
    for (const uint32_t number : directive.links()) {
      const auto found = links_.find(number);
      if (found == links_.end()) continue;
      Link& link = found->second;
      pb::Directive one = directive.directive();
      if (one.has_job()) {
        pb::JobState& state = *one.mutable_job();
        if (!directive.keep_group()) {
          link.groups.erase(state.job());
          if (state.has_group()) link.groups[state.job()] = state.group();
        } else if (const auto group = link.groups.find(state.job()); group != link.groups.end()) {
          *state.mutable_group() = group->second;
        }
      }
      sent.emplace_back(link.stream, std::move(one));
    }
  }
  for (auto& [stream, one] : sent) stream->Push(std::move(one));
}

void AgentService::OnEnd(const pb::RelayEnd& end) {
  const auto stream = Remove(end.link());
  if (stream != nullptr) stream->Close(FromProto(end.why()));
}

void AgentService::OnLost(const Status& why) {
  std::unordered_map<uint32_t, Link> links;
  {
    MutexLock lock(mutex_);
    links.swap(links_);
    agents_.clear();
  }
  for (const auto& [number, link] : links) {
    link.stream->Close(UnavailableError("the relay lost the coordinator: " + why.message()));
  }
}

// ---- calls ----

grpc::ServerWriteReactor<pb::Directive>* AgentService::Attach(grpc::CallbackServerContext* context,
                                                              const pb::AttachRequest* request) {
  // The agent stays with this relay when the stream ends because the coordinator changes.
  context->AddTrailingMetadata(kLeaderMetadata, own_address_);
  Status status = CheckOwnNode(*context, request->node());
  if (status.ok() && request->ByteSizeLong() > kControlMessageBytesMax - kBatchOverhead) {
    status = ResourceExhaustedError(
        "the inventory of the node is too large for a relay: name a "
        "coordinator in its configuration");
  }
  if (!status.ok()) {
    auto refused = DirectiveStream::Make([] {});
    refused->Close(status);
    return refused.get();
  }
  pb::RelayItem item;
  *item.mutable_attach() = *request;
  std::shared_ptr<DirectiveStream> stream;
  {
    MutexLock lock(mutex_);
    const uint32_t link = ++last_link_;
    item.set_link(link);
    stream = DirectiveStream::Make([this, link] { OnStreamEnd(link); });
    links_[link] = {stream, request->node(), request->agent_start(), {}};
    agents_[{request->node(), request->agent_start()}] = link;
  }
  const uint32_t link = item.link();
  if (!upstream_.Send(std::move(item))) {
    Remove(link);
    stream->Close(
        UnavailableError("the relay has no connection to a coordinator, or too much for it is "
                         "pending; try again"));
  }
  return stream.get();
}

template <typename Request>
Status AgentService::SetLink(const grpc::CallbackServerContext& context, const Request& request,
                             pb::RelayItem& item) {
  HOLDFAST_RETURN_IF_ERROR(CheckOwnNode(context, request.node()));
  item.set_link(LinkOf(request.node(), request.agent_start()));
  if (item.link() != 0) return Status::Ok();
  return FencedError(
      fmt::format("node {} is not attached through this relay; attach again", request.node()));
}

grpc::ServerUnaryReactor* AgentService::Report(grpc::CallbackServerContext* context,
                                               const pb::ReportRequest* request,
                                               pb::ReportReply* reply) {
  pb::RelayItem item;
  const Status linked = SetLink(*context, *request, item);
  if (!linked.ok()) return Refuse(context, reply, linked);
  *item.mutable_report() = *request;
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  upstream_.Call(std::move(item),
                 [reactor, reply](const pb::RelayAnswer* answer, const Upstream::Shared& shared) {
                   if (answer == nullptr) return reactor->Finish(NoAnswer());
                   *reply = answer->report();
                   if (reply->wall_nanos() == 0) reply->set_wall_nanos(shared.wall_nanos);
                   if (reply->pause_ms() == 0) reply->set_pause_ms(shared.report_pause_ms);
                   reactor->Finish(grpc::Status::OK);
                 });
  return reactor;
}

grpc::ServerUnaryReactor* AgentService::Observe(grpc::CallbackServerContext* context,
                                                const pb::ObserveRequest* request,
                                                pb::ObserveReply* reply) {
  pb::RelayItem item;
  const Status linked = SetLink(*context, *request, item);
  if (!linked.ok()) return Refuse(context, reply, linked);
  *item.mutable_observe() = *request;
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  upstream_.Call(std::move(item),
                 [reactor, reply](const pb::RelayAnswer* answer, const Upstream::Shared& shared) {
                   if (answer == nullptr) return reactor->Finish(NoAnswer());
                   *reply = answer->observe();
                   if (reply->pause_ms() == 0) reply->set_pause_ms(shared.observe_pause_ms);
                   reactor->Finish(grpc::Status::OK);
                 });
  return reactor;
}

template <typename Request, typename Reply, typename Method>
grpc::ServerUnaryReactor* AgentService::PassOn(grpc::CallbackServerContext* context,
                                               const Request* request, Reply* reply,
                                               Method method) {
  PassedCall* call = std::make_unique<PassedCall>(*context).release();  // deletes itself in OnDone
  grpc::ServerUnaryReactor* reactor = call;
  (upstream_.stub().async()->*method)(
      call->context(), request, reply,
      [reactor](const grpc::Status& status) { reactor->Finish(status); });
  return reactor;
}

grpc::ServerUnaryReactor* AgentService::Join(grpc::CallbackServerContext* context,
                                             const pb::JoinRequest* request, pb::JoinReply* reply) {
  const Status own = CheckOwnNode(*context, request->node());
  if (!own.ok()) return Refuse(context, reply, own);
  using Async = pb::Coordinator::StubInterface::async_interface;
  void (Async::*method)(grpc::ClientContext*, const pb::JoinRequest*, pb::JoinReply*,
                        std::function<void(grpc::Status)>) = &Async::Join;
  return PassOn(context, request, reply, method);
}

grpc::ServerUnaryReactor* AgentService::DecideRestore(grpc::CallbackServerContext* context,
                                                      const pb::DecideRestoreRequest* request,
                                                      pb::DecideRestoreReply* reply) {
  const Status own = CheckOwnNode(*context, request->node());
  if (!own.ok()) return Refuse(context, reply, own);
  using Async = pb::Coordinator::StubInterface::async_interface;
  void (Async::*method)(grpc::ClientContext*, const pb::DecideRestoreRequest*,
                        pb::DecideRestoreReply*, std::function<void(grpc::Status)>) =
      &Async::DecideRestore;
  return PassOn(context, request, reply, method);
}

grpc::ServerUnaryReactor* AgentService::PlanRestore(grpc::CallbackServerContext* context,
                                                    const pb::PlanRestoreRequest* request,
                                                    pb::PlanRestoreReply* reply) {
  using Async = pb::Coordinator::StubInterface::async_interface;
  void (Async::*method)(grpc::ClientContext*, const pb::PlanRestoreRequest*, pb::PlanRestoreReply*,
                        std::function<void(grpc::Status)>) = &Async::PlanRestore;
  return PassOn(context, request, reply, method);
}

grpc::ServerUnaryReactor* AgentService::GetStatus(grpc::CallbackServerContext* context,
                                                  const pb::GetStatusRequest* request,
                                                  pb::GetStatusReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (request->job() != "-") {
    reactor->Finish({grpc::StatusCode::UNIMPLEMENTED, "redirected"});
    return reactor;
  }
  upstream_.AwaitLeading([this, context, reactor, reply](const std::optional<Leading>& leading) {
    if (!leading) {
      if (upstream_.absent_for() < kKeepAgents) {
        context->AddTrailingMetadata(kLeaderMetadata, own_address_);
      }
      return reactor->Finish({grpc::StatusCode::UNAVAILABLE,
                              "the relay has no connection to a coordinator that leads"});
    }
    reply->set_life(leading->life);
    reply->set_epoch(leading->epoch);
    reply->set_relay(true);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

}  // namespace holdfast::coord::relay
