#include "coordinator/server/relay_service.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/certificates/certificate.h"
#include "base/log.h"
#include "base/random.h"
#include "coordinator/api/convert.h"
#include "coordinator/api/refused_stream.h"
#include "coordinator/server/calls.h"

namespace holdfast::coord {
namespace {
/// Directives and answers are collected for this long: those of a commit are then one message.
constexpr std::chrono::milliseconds kCollect(5);
}  // namespace

RelayService::RelayService(std::string cluster, Applier& applier, AgentRequests& agents,
                           const Clock& clock)
    : cluster_(std::move(cluster)), applier_(applier), agents_(agents), clock_(clock) {
  thread_ = Thread([this] { Run(); });
}

RelayService::~RelayService() { Stop(); }

void RelayService::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void RelayService::Run() {
  for (;;) {
    std::vector<std::shared_ptr<RelaySession>> flush;
    {
      MutexLock lock(mutex_);
      while (dirty_.empty() && !stopping_) wake_.Wait(mutex_);
      if (!stopping_) wake_.WaitFor(mutex_, kCollect);
      for (const uint64_t number : std::exchange(dirty_, {})) {
        const auto found = sessions_.find(number);
        if (found != sessions_.end()) flush.push_back(found->second);
      }
      if (stopping_) return;
    }
    for (const auto& session : flush) session->Flush();
  }
}

std::shared_ptr<RelaySession> RelayService::Find(uint64_t session) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : found->second;
}

std::string RelayService::CallerOf(grpc::CallbackServerContext& context) const {
  return callers_ == nullptr ? "" : callers_->Identify(context.c_call()).name;
}

grpc::ServerWriteReactor<pb::RelayDown>* RelayService::Open(grpc::CallbackServerContext* context,
                                                            const pb::OpenRelayRequest* request) {
  if (request->cluster() != cluster_) {
    const Status why = FailedPreconditionError(
        fmt::format("the relay belongs to cluster '{}', this coordinator serves '{}'",
                    request->cluster(), cluster_));
    return RefusedStream<pb::RelayDown>::Make(why);
  }
  const uint64_t number = RandomSeed() | 1;
  const std::string relay = request->relay();
  const AttachId kept = applier_.NextId();
  auto session = RelaySession::Make(
      number, {relay, CallerOf(*context)}, agents_, clock_,
      [this, number] {
        MutexLock lock(mutex_);
        if (dirty_.empty()) wake_.NotifyOne();
        dirty_.insert(number);
      },
      [this, number, relay, kept] {
        applier_.Release(kept);
        {
          MutexLock lock(mutex_);
          sessions_.erase(number);
        }
        Log(LogLevel::kInfo, "RelayDetached", {Kv("relay", relay)});
      });
  Log(LogLevel::kInfo, "RelayAttached",
      {Kv("relay", relay), Kv("caller", session->owner().caller)});
  {
    MutexLock lock(mutex_);
    sessions_[number] = session;
  }
  session->Begin();
  // The applier closes the session when it drops its state, as it closes agents' streams.
  applier_.Keep(kept, session);
  return session.get();
}

grpc::ServerUnaryReactor* RelayService::Forward(grpc::CallbackServerContext* context,
                                                const pb::ForwardRequest* request,
                                                pb::ForwardReply* reply) {
  const auto session = Find(request->session());
  if (session == nullptr || session->owner().caller != CallerOf(*context)) {
    return ReplyOutcome(context, reply, NotFoundError("this relay's session has ended"));
  }
  return ReplyOutcome(context, reply, session->Forward(*request));
}

Status RelayService::CheckNode(const grpc::CallbackServerContext& context,
                               const std::string& node) {
  const std::string relay = RelayNameOf(context);
  if (relay.empty()) return CheckOwnNode(context, node);
  std::map<uint64_t, std::shared_ptr<RelaySession>> sessions;
  {
    MutexLock lock(mutex_);
    sessions = sessions_;
  }
  for (const auto& [number, session] : sessions) {
    if (session->owner().caller == relay && session->Has(node)) return Status::Ok();
  }
  return PermissionDeniedError(fmt::format(
      "relay {} may not act for node '{}', which is not attached through it", relay, node));
}

}  // namespace holdfast::coord
