#include "coordinator/api/certificate_keeper.h"

#include <algorithm>
#include <chrono>

#include "base/certificates/certificate.h"
#include "base/certificates/durable_file.h"
#include "base/certificates/request.h"
#include "base/log.h"
#include "coordinator/api/convert.h"

namespace holdfast::coord {
namespace {
using certificates::Certificate;

constexpr std::chrono::seconds kLookInterval(1);
constexpr std::chrono::seconds kRenewPauseMax(60);
constexpr int64_t kRenewTimeoutSeconds = 10;
constexpr int64_t kNanosPerSec = 1'000'000'000;
constexpr mode_t kCaFileMode = 0644;
}  // namespace

CertificateKeeper::CertificateKeeper(const TlsFiles& tls, bool renew,
                                     std::unique_ptr<LeaderChannel> coordinators,
                                     certificates::RevokedNames& revoked, Clock& clock)
    : tls_(tls),
      files_{tls.cert, tls.key},
      renew_(renew),
      coordinators_(std::move(coordinators)),
      clock_(clock),
      follower_(
          *coordinators_, revoked, [this](const coordinator::Trust& trust) { Accept(trust); },
          clock) {}

CertificateKeeper::~CertificateKeeper() { Stop(); }

Status CertificateKeeper::Check(const TlsFiles& tls, bool renew) {
  if (!renew || (tls.ca != tls.cert && tls.ca != tls.key)) return Status::Ok();
  return InvalidArgumentError(
      "tls.renew replaces tls.ca by the authorities that the coordinator accepts, so tls.ca must "
      "be "
      "another file than tls.cert and tls.key");
}

void CertificateKeeper::Start() {
  follower_.Start();
  if (renew_) renew_thread_ = std::thread([this] { RenewLoop(); });
}

void CertificateKeeper::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (renewing_ != nullptr) renewing_->TryCancel();
  }
  wake_.NotifyAll();
  follower_.Stop();
  if (renew_thread_.joinable()) renew_thread_.join();
}

bool CertificateKeeper::Pause(Clock::Duration time) {
  MutexLock lock(mutex_);
  const Clock::TimePoint until = clock_.Now() + time;
  while (!stopping_ && clock_.Now() < until) wake_.WaitFor(mutex_, until - clock_.Now());
  return !stopping_;
}

void CertificateKeeper::Accept(const coordinator::Trust& trust) {
  if (!renew_ || trust.ca_pem().empty()) return;
  const auto before = certificates::ReadSmallFile(tls_.ca);
  if (!before || *before != trust.ca_pem()) {
    // Without any authority, no connection would be possible any more.
    if (!Certificate::AllFromPem(trust.ca_pem())) return;
    const Status replaced = certificates::ReplaceFile(tls_.ca, trust.ca_pem(), kCaFileMode);
    Log(replaced.ok() ? LogLevel::kInfo : LogLevel::kError, "AuthoritiesChanged",
        {Kv("issuer", trust.issuer_hash()), Kv("file", tls_.ca),
         Kv("outcome", replaced.ToString())});
    if (!replaced.ok()) return;
  }
  MutexLock lock(mutex_);
  issuer_hash_ = trust.issuer_hash();
}

Result<bool> CertificateKeeper::Due() const {
  HOLDFAST_ASSIGN_OR_RETURN(const Certificate own, certificates::ReadIdentity(files_));
  if (certificates::DueForRenewal(own, clock_.WallNanos() / kNanosPerSec)) return true;
  std::string issuer;
  {
    MutexLock lock(mutex_);
    issuer = issuer_hash_;
  }
  if (issuer.empty()) return false;
  HOLDFAST_ASSIGN_OR_RETURN(const std::string pem, certificates::ReadSmallFile(tls_.ca));
  HOLDFAST_ASSIGN_OR_RETURN(const auto accepted, Certificate::AllFromPem(pem));
  for (const Certificate& one : accepted) {
    if (one.Hash() == issuer) return !own.SignedBy(one);
  }
  return false;
}

void CertificateKeeper::RenewLoop() {
  Clock::Duration pause = kLookInterval;
  std::string last_error;
  do {
    const auto due = Due();
    const Status status = !due ? due.error() : (*due ? Renew() : Status::Ok());
    if (status.ok()) {
      pause = kLookInterval;
      last_error.clear();
      continue;
    }
    if (status.ToString() != last_error) {
      last_error = status.ToString();
      Log(LogLevel::kError, "CertificateNotRenewed", {Kv("error", last_error)});
    }
    pause = std::min<Clock::Duration>(2 * pause, kRenewPauseMax);
  } while (Pause(pause));
}

Status CertificateKeeper::Renew() {
  HOLDFAST_ASSIGN_OR_RETURN(const Certificate own, certificates::ReadIdentity(files_));
  HOLDFAST_ASSIGN_OR_RETURN(const auto key, certificates::NextKey(files_));
  HOLDFAST_ASSIGN_OR_RETURN(const auto signing, certificates::Request::Make(key));
  coordinator::RenewRequest request;
  request.set_request_pem(signing.ToPem());
  for (const std::string& host : own.Hosts()) request.add_hosts(host);
  coordinator::RenewReply reply;
  grpc::ClientContext context;
  context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                    gpr_time_from_seconds(kRenewTimeoutSeconds, GPR_TIMESPAN)));
  {
    MutexLock lock(mutex_);
    if (stopping_) return CancelledError("this process is stopping");
    renewing_ = &context;
  }
  const size_t asked = coordinators_->current();
  coordinator::Certificates::Stub stub(coordinators_->channel(asked));
  const grpc::Status finished = stub.Renew(&context, request, &reply);
  {
    MutexLock lock(mutex_);
    renewing_ = nullptr;
  }
  HOLDFAST_RETURN_IF_ERROR(FromGrpc(finished, coordinators_->address(asked)));
  HOLDFAST_RETURN_IF_ERROR(FromProto(reply.outcome()));
  HOLDFAST_ASSIGN_OR_RETURN(const Certificate next, Certificate::FromPem(reply.certificate_pem()));
  if (next.Hash() != key.Hash() || next.SpiffeUris() != own.SpiffeUris()) {
    return InternalError("the coordinator sent a certificate of another name or key");
  }
  HOLDFAST_RETURN_IF_ERROR(certificates::InstallIdentity(files_, reply.certificate_pem(), key));
  Log(LogLevel::kInfo, "CertificateRenewed",
      {Kv("name", next.SpiffeUris().empty() ? "" : next.SpiffeUris().front()),
       Kv("until", FormatUtc(next.not_after() * kNanosPerSec))});
  return Status::Ok();
}

}  // namespace holdfast::coord
