#include "coordinator/api/trust_follower.h"

#include <chrono>
#include <utility>

#include "base/log.h"

namespace holdfast::coord {
namespace {
constexpr std::chrono::seconds kPause(1);
// A coordinator of an older version does not know the service.
constexpr std::chrono::seconds kUnknownPause(60);
}  // namespace

TrustFollower::TrustFollower(LeaderChannel& coordinators, certificates::RevokedNames& revoked,
                             OnTrust on_trust, Clock& clock)
    : coordinators_(coordinators),
      revoked_(revoked),
      on_trust_(std::move(on_trust)),
      clock_(clock) {}

TrustFollower::~TrustFollower() { Stop(); }

void TrustFollower::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void TrustFollower::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

std::string TrustFollower::refusal() const {
  MutexLock lock(mutex_);
  return refusal_;
}

bool TrustFollower::Pause(Clock::Duration time) {
  MutexLock lock(mutex_);
  const Clock::TimePoint until = clock_.Now() + time;
  while (!stopping_ && clock_.Now() < until) wake_.WaitFor(mutex_, until - clock_.Now());
  return !stopping_;
}

void TrustFollower::Loop() {
  for (;;) {
    const grpc::Status ended = FollowOnce(coordinators_.current());
    const bool unknown = ended.error_code() == grpc::StatusCode::UNIMPLEMENTED;
    if (!Pause(unknown ? kUnknownPause : kPause)) return;
  }
}

grpc::Status TrustFollower::FollowOnce(size_t coordinator) {
  grpc::ClientContext context;
  {
    MutexLock lock(mutex_);
    if (stopping_) return grpc::Status::CANCELLED;
    call_ = &context;
  }
  coordinator::Certificates::Stub stub(coordinators_.channel(coordinator));
  const auto stream = stub.WatchTrust(&context, coordinator::WatchTrustRequest());
  coordinator::Trust trust;
  while (stream->Read(&trust)) Accept(trust);
  grpc::Status ended = stream->Finish();
  {
    MutexLock lock(mutex_);
    call_ = nullptr;
    if (ended.error_code() == grpc::StatusCode::PERMISSION_DENIED) {
      refusal_ = ended.error_message();
    }
  }
  if (ended.error_code() == grpc::StatusCode::PERMISSION_DENIED) {
    Log(LogLevel::kError, "CertificateRefused", {Kv("why", ended.error_message())});
  }
  if (ended.error_code() == grpc::StatusCode::UNAVAILABLE) {
    coordinators_.Follow(coordinator, context);
  }
  return ended;
}

void TrustFollower::Accept(const coordinator::Trust& trust) {
  {
    MutexLock lock(mutex_);
    refusal_.clear();
  }
  certificates::RevokedNames::Times times;
  for (const coordinator::Revoked& one : trust.revoked()) {
    times[{one.role(), one.name()}] = one.before_s();
  }
  const size_t count = times.size();
  if (revoked_.Replace(std::move(times))) {
    Log(LogLevel::kInfo, "RevokedNamesChanged", {Kv("names", count)});
  }
  if (on_trust_) on_trust_(trust);
}

}  // namespace holdfast::coord
