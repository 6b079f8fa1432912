#include "coordinator/relay/upstream.h"

#include <fmt/format.h>
#include <grpc/support/time.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "coordinator/api/convert.h"
#include "coordinator/relay/fold.h"

namespace holdfast::coord::relay {
namespace {
/// Messages are collected for this long: those of many agents are then one batch.
constexpr std::chrono::milliseconds kCollect(10);
constexpr std::chrono::milliseconds kRetry(100);
constexpr std::chrono::milliseconds kWaiterStep(50);
/// How long an agent waits for a session before it asks the next address of its list.
constexpr std::chrono::milliseconds kWaiterPatience(800);
/// A coordinator that does not take a batch for this long is silent. Agents search for another
/// coordinator after a second of silence, so the relay must answer them before.
constexpr int64_t kSilentMs = 500;
constexpr int64_t kAskMs = 1'000;
/// A batch is not empty, and its messages have no more bytes than this together, unless it has one.
constexpr size_t kBatchBytesMax = 8 << 20;

gpr_timespec After(int64_t ms) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN));
}
}  // namespace

Upstream::Upstream(UpstreamOptions options, std::unique_ptr<LeaderChannel> coordinators,
                   const Clock& clock)
    : options_(std::move(options)),
      coordinators_(std::move(coordinators)),
      clock_(clock),
      absent_since_(clock.Now()) {}

Upstream::~Upstream() { Stop(); }

void Upstream::Start(DownReceiver& receiver) {
  receiver_ = &receiver;
  session_thread_ = std::thread([this] { SessionLoop(); });
  send_thread_ = std::thread([this] { SendLoop(); });
}

void Upstream::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (grpc::ClientContext* context : {reading_, asking_, sending_}) {
      if (context != nullptr) context->TryCancel();
    }
    wake_.NotifyAll();
  }
  if (session_thread_.joinable()) session_thread_.join();
  if (send_thread_.joinable()) send_thread_.join();
  EndSession();
  AnswerWaiters();
}

bool Upstream::Pause(std::chrono::milliseconds time) {
  const Clock::TimePoint until = clock_.Now() + time;
  MutexLock lock(mutex_);
  while (!stopping_ && clock_.Now() < until) wake_.WaitFor(mutex_, until - clock_.Now());
  return !stopping_;
}

// ---- the session ----

void Upstream::SessionLoop() {
  std::string last_error;
  do {
    const Status why = SessionOnce();
    bool was_open = false;
    {
      MutexLock lock(mutex_);
      was_open = session_ != 0;
    }
    EndSession();
    if (was_open) receiver_->OnLost(why);
    if (was_open || why.ToString() != last_error) {
      last_error = why.ToString();
      Log(LogLevel::kWarn, was_open ? "CoordinatorLost" : "CoordinatorNotReached",
          {Kv("error", last_error)});
    }
  } while (Pause(kRetry));
}

std::optional<Leading> Upstream::Ask(size_t coordinator, grpc::ClientContext* context) {
  pb::GetStatusRequest request;
  request.set_job("-");  // only the epoch is needed, no job's status
  pb::GetStatusReply reply;
  context->set_deadline(After(kAskMs));
  const grpc::Status sent = coordinators_->stub(coordinator).GetStatus(context, request, &reply);
  if (!sent.ok() || reply.epoch() == 0) return std::nullopt;
  return Leading{reply.life(), reply.epoch(), coordinators_->address(coordinator)};
}

Status Upstream::SessionOnce() {
  const size_t coordinator = coordinators_->current();
  grpc::ClientContext context;
  {
    MutexLock lock(mutex_);
    if (stopping_) return CancelledError("the relay is stopping");
    reading_ = &context;
  }
  pb::OpenRelayRequest open;
  open.set_cluster(options_.cluster);
  open.set_relay(options_.relay);
  const auto stub = pb::Relays::NewStub(coordinators_->channel(coordinator));
  const auto reader = stub->Open(&context, open);
  pb::RelayDown down;
  while (reader->Read(&down)) {
    if (down.session() != 0 && !Begin(down.session(), coordinator)) context.TryCancel();
    Receive(down);
  }
  const grpc::Status finished = reader->Finish();
  {
    MutexLock lock(mutex_);
    reading_ = nullptr;
  }
  if (finished.error_code() == grpc::StatusCode::UNAVAILABLE) {
    coordinators_->Follow(coordinator, context);
  }
  if (finished.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return FailedPreconditionError(
        fmt::format("the server at {} serves no relays: it is a coordinator of an earlier version. "
                    "Upgrade the coordinators before the relays",
                    coordinators_->address(coordinator)));
  }
  Status status = FromGrpc(finished, "the coordinator");
  return status.ok() ? UnavailableError("the coordinator ended the session") : status;
}

bool Upstream::Begin(uint64_t session, size_t coordinator) {
  grpc::ClientContext context;
  {
    MutexLock lock(mutex_);
    if (stopping_) return false;
    asking_ = &context;
  }
  const std::optional<Leading> leading = Ask(coordinator, &context);
  {
    MutexLock lock(mutex_);
    asking_ = nullptr;
    if (!leading) return false;
    session_ = session;
    ++counts_.sessions;
    leading_ = leading;
    silent_ = false;
    next_batch_ = 1;
  }
  Log(LogLevel::kInfo, "CoordinatorAttached",
      {Kv("epoch", leading->epoch), Kv("coordinator", leading->address)});
  AnswerWaiters();
  return true;
}

void Upstream::Receive(const pb::RelayDown& down) {
  for (const pb::RelayDirective& directive : down.directives()) receiver_->OnDirective(directive);
  for (const pb::RelayEnd& end : down.ends()) receiver_->OnEnd(end);
  std::vector<std::pair<Answered, const pb::RelayAnswer*>> answered;
  pb::RelayAnswer plain;
  {
    MutexLock lock(mutex_);
    const auto take = [&](uint64_t call, const pb::RelayAnswer* answer) HOLDFAST_REQUIRES(mutex_) {
      const auto found = calls_.find(call);
      if (found == calls_.end()) return;
      answered.emplace_back(std::move(found->second), answer);
      calls_.erase(found);
    };
    for (const uint64_t call : down.done()) take(call, &plain);
    for (const pb::RelayAnswer& answer : down.answers()) {
      take(answer.call(), answer.unknown() ? nullptr : &answer);
    }
  }
  const Shared shared{down.wall_nanos(), down.report_pause_ms(), down.observe_pause_ms()};
  for (const auto& [call, answer] : answered) call(answer, shared);
}

void Upstream::EndSession() {
  std::unordered_map<uint64_t, Answered> calls;
  {
    MutexLock lock(mutex_);
    if (session_ != 0) absent_since_ = clock_.Now();
    session_ = 0;
    leading_.reset();
    silent_ = false;
    pending_.clear();
    pending_bytes_ = 0;
    calls = std::exchange(calls_, {});
    if (sending_ != nullptr) sending_->TryCancel();
  }
  for (const auto& [call, answered] : calls) answered(nullptr, {});
}

void Upstream::CancelSession(uint64_t session) {
  MutexLock lock(mutex_);
  if (session_ == session && reading_ != nullptr) reading_->TryCancel();
}

std::optional<Leading> Upstream::leading() {
  MutexLock lock(mutex_);
  return leading_;
}

Upstream::Counts Upstream::counts() {
  MutexLock lock(mutex_);
  Counts counts = counts_;
  counts.connected = session_ != 0;
  counts.pending_bytes = pending_bytes_;
  return counts;
}

Clock::Duration Upstream::absent_for() {
  MutexLock lock(mutex_);
  return session_ != 0 ? Clock::Duration::zero() : clock_.Now() - absent_since_;
}

void Upstream::AwaitLeading(LeadingAnswer answer) {
  std::optional<Leading> leading;
  {
    MutexLock lock(mutex_);
    leading = leading_;
    if (!leading && !stopping_) {
      waiters_.push_back({clock_.Now() + kWaiterPatience, std::move(answer)});
      wake_.NotifyAll();
      return;
    }
  }
  answer(leading);
}

void Upstream::AnswerWaiters() {
  std::vector<Waiter> due;
  std::optional<Leading> leading;
  {
    MutexLock lock(mutex_);
    leading = leading_;
    const auto now = clock_.Now();
    const auto waits = std::partition(waiters_.begin(), waiters_.end(),
                                      [&](const Waiter& one) HOLDFAST_REQUIRES(mutex_) {
                                        return !leading && !stopping_ && now < one.until;
                                      });
    std::move(waits, waiters_.end(), std::back_inserter(due));
    waiters_.erase(waits, waiters_.end());
  }
  for (const Waiter& waiter : due) waiter.answer(leading);
}

// ---- messages to the coordinator ----

bool Upstream::Send(pb::RelayItem item) {
  MutexLock lock(mutex_);
  if (session_ == 0 || pending_bytes_ > options_.pending_bytes_max) {
    ++counts_.refused;
    return false;
  }
  pending_bytes_ += item.ByteSizeLong();
  pending_.push_back(std::move(item));
  if (pending_.size() == 1) wake_.NotifyAll();
  return true;
}

void Upstream::Call(pb::RelayItem item, Answered answered) {
  bool refused = false;
  {
    MutexLock lock(mutex_);
    refused = session_ == 0 || silent_ || pending_bytes_ > options_.pending_bytes_max;
    if (refused) {
      ++counts_.refused;
    } else {
      item.set_call(next_call_++);
      calls_[item.call()] = std::move(answered);
      pending_bytes_ += item.ByteSizeLong();
      pending_.push_back(std::move(item));
      if (pending_.size() == 1) wake_.NotifyAll();
    }
  }
  if (refused) answered(nullptr, {});
}

std::optional<Upstream::Batch> Upstream::Take() {
  {
    MutexLock lock(mutex_);
    if (pending_.empty() && !stopping_) {
      if (waiters_.empty()) {
        wake_.Wait(mutex_);
      } else {
        wake_.WaitFor(mutex_, kWaiterStep);
      }
    }
    if (pending_.empty() || stopping_) return std::nullopt;
  }
  Pause(kCollect);
  MutexLock lock(mutex_);
  if (session_ == 0 || pending_.empty()) return std::nullopt;
  Batch batch;
  batch.session = session_;
  batch.coordinator = coordinators_->current();
  batch.request.set_session(session_);
  batch.request.set_number(next_batch_++);
  size_t bytes = 0;
  while (!pending_.empty()) {
    const size_t more = pending_.front().ByteSizeLong();
    if (bytes != 0 && bytes + more > kBatchBytesMax) break;
    bytes += more;
    pending_bytes_ -= std::min(pending_bytes_, more);
    *batch.request.add_items() = std::move(pending_.front());
    ++batch.messages;
    pending_.pop_front();
  }
  return batch;
}

void Upstream::SendLoop() {
  for (;;) {
    auto batch = Take();
    AnswerWaiters();
    if (batch) {
      FoldReplicas(&batch->request);
      SendBatch(*batch);
    }
    MutexLock lock(mutex_);
    if (stopping_) return;
  }
}

void Upstream::SendBatch(Batch& batch) {
  const auto stub = pb::Relays::NewStub(coordinators_->channel(batch.coordinator));
  const auto since = clock_.Now();
  for (;;) {
    grpc::ClientContext context;
    context.set_deadline(After(kSilentMs));
    {
      MutexLock lock(mutex_);
      if (stopping_ || session_ != batch.session) return;
      sending_ = &context;
    }
    pb::ForwardReply reply;
    const grpc::Status sent = stub->Forward(&context, batch.request, &reply);
    {
      MutexLock lock(mutex_);
      sending_ = nullptr;
      if (session_ != batch.session) return;
      if (sent.ok()) silent_ = false;
    }
    if (sent.ok()) {
      const Status outcome = FromProto(reply.outcome());
      if (outcome.ok()) return Count(batch);
      Log(LogLevel::kWarn, "BatchRefused", {Kv("error", outcome.ToString())});
      return CancelSession(batch.session);
    }
    if (sent.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) {
      return CancelSession(batch.session);
    }
    BeSilent();
    if (clock_.Now() - since >= std::chrono::milliseconds(kAskMs)) SearchLeader();
  }
}

void Upstream::Count(const Batch& taken) {
  MutexLock lock(mutex_);
  ++counts_.batches;
  counts_.messages += taken.messages;
}

void Upstream::BeSilent() {
  std::unordered_map<uint64_t, Answered> calls;
  {
    MutexLock lock(mutex_);
    silent_ = true;
    calls = std::exchange(calls_, {});
  }
  for (const auto& [call, answered] : calls) answered(nullptr, {});
}

void Upstream::SearchLeader() {
  std::optional<Leading> known = leading();
  if (!known) return;
  const size_t current = coordinators_->current();
  for (size_t other = 0; other < coordinators_->size(); ++other) {
    if (other == current) continue;
    grpc::ClientContext context;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      sending_ = &context;
    }
    const auto found = Ask(other, &context);
    uint64_t session = 0;
    {
      MutexLock lock(mutex_);
      sending_ = nullptr;
      session = session_;
    }
    if (!found || found->life != known->life || found->epoch <= known->epoch) continue;
    Log(LogLevel::kWarn, "CoordinatorSilent",
        {Kv("coordinator", known->address), Kv("leader", found->address)});
    coordinators_->Choose(other);
    return CancelSession(session);
  }
}

}  // namespace holdfast::coord::relay
