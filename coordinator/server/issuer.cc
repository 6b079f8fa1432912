#include "coordinator/server/issuer.h"

#include <algorithm>

#include "base/certificates/durable_file.h"
#include "base/certificates/identity_file.h"
#include "base/log.h"

namespace holdfast::coord {
namespace {
using certificates::Authority;
using certificates::Certificate;

constexpr int64_t kNanosOfSecond = 1'000'000'000;
}  // namespace

Result<std::unique_ptr<Issuer>> Issuer::Open(IssuerOptions options, const Clock& clock) {
  std::unique_ptr<Issuer> issuer(new Issuer(std::move(options), clock));
  if (!issuer->options_.tls.configured()) return issuer;
  HOLDFAST_ASSIGN_OR_RETURN(Authorities read, Read(issuer->options_));
  {
    MutexLock lock(issuer->mutex_);
    issuer->authorities_ = std::move(read);
  }
  issuer->Refresh();
  return issuer;
}

Status Issuer::Check(const IssuerOptions& options) {
  auto read = Read(options);
  return read ? Status::Ok() : read.error();
}

int64_t Issuer::NowSeconds() const { return clock_.WallNanos() / kNanosOfSecond; }

Result<Issuer::Authorities> Issuer::Read(const IssuerOptions& options) {
  Authorities read;
  HOLDFAST_ASSIGN_OR_RETURN(const std::string pem, certificates::ReadSmallFile(options.tls.ca));
  HOLDFAST_ASSIGN_OR_RETURN(read.accepted, Certificate::AllFromPem(pem));
  if (!options.ca_key.empty()) {
    auto key = certificates::ReadSmallFile(options.ca_key);
    if (!key) return Fail(key.error().WithContext("join.ca_key"));
    auto authority = Authority::Load(pem, *key);
    if (!authority) return Fail(authority.error().WithContext("join.ca_key, tls.ca"));
    read.issuing = std::make_unique<Authority>(*std::move(authority));
    const std::string hash = read.issuing->certificate().Hash();
    std::stable_partition(read.accepted.begin(), read.accepted.end(),
                          [&](const Certificate& one) { return one.Hash() == hash; });
  }
  for (const Certificate& one : read.accepted) read.bundle += one.ToPem();
  return read;
}

std::string Issuer::issuer_hash() const {
  MutexLock lock(mutex_);
  return authorities_.issuing == nullptr ? "" : authorities_.issuing->certificate().Hash();
}

std::string Issuer::bundle() const {
  MutexLock lock(mutex_);
  return authorities_.bundle;
}

std::vector<std::string> Issuer::hashes() const {
  MutexLock lock(mutex_);
  std::vector<std::string> hashes;
  for (const Certificate& one : authorities_.accepted) hashes.push_back(one.Hash());
  return hashes;
}

Result<std::string> Issuer::Issue(const certificates::Request& request,
                                  const IssuedIdentity& identity,
                                  const std::vector<std::string>& hosts) const {
  MutexLock lock(mutex_);
  if (authorities_.issuing == nullptr) {
    return Fail(FailedPreconditionError(
        "this coordinator has no key of the authority (join.ca_key); ask the one that has"));
  }
  const certificates::Issue issue{
      certificates::SpiffeUri(options_.cluster, identity.role, identity.name), hosts,
      identity.not_before_s, identity.not_after_s};
  HOLDFAST_ASSIGN_OR_RETURN(const Certificate made,
                            authorities_.issuing->Sign(request.key(), issue));
  return made.ToPem();
}

void Issuer::Refresh() {
  if (!options_.tls.configured()) return;
  auto read = Read(options_);
  if (!read) return LogOnce(read.error());
  bool changed = false;
  {
    MutexLock lock(mutex_);
    changed = read->bundle != authorities_.bundle;
    authorities_ = *std::move(read);
  }
  if (changed) {
    Log(LogLevel::kInfo, "AuthoritiesChanged",
        {Kv("issuer", issuer_hash()), Kv("accepted", hashes().size())});
  }
  LogOnce(RenewOwn());
}

void Issuer::LogOnce(const Status& status) {
  MutexLock lock(mutex_);
  if (!status.ok() && status.ToString() != last_error_) {
    Log(LogLevel::kError, "CertificatesNotRefreshed", {Kv("error", status.ToString())});
  }
  last_error_ = status.ok() ? "" : status.ToString();
}

Status Issuer::RenewOwn() {
  if (!enabled()) return Status::Ok();
  const certificates::IdentityFiles files{options_.tls.cert, options_.tls.key};
  HOLDFAST_ASSIGN_OR_RETURN(const Certificate own, certificates::ReadIdentity(files));
  const std::string role =
      certificates::SpiffeUri(options_.cluster, certificates::kCoordinatorRole, "");
  const std::vector<std::string> uris = own.SpiffeUris();
  // A certificate of another form is not of this authority, and its owner renews it.
  if (uris.size() != 1 || !uris.front().starts_with(role)) return Status::Ok();
  MutexLock lock(mutex_);
  const Authority& authority = *authorities_.issuing;
  if (!certificates::DueForRenewal(own, NowSeconds()) && own.SignedBy(authority.certificate())) {
    return Status::Ok();
  }
  HOLDFAST_ASSIGN_OR_RETURN(const auto key, certificates::NextKey(files));
  certificates::Issue issue{uris.front(), own.Hosts(),
                            NowSeconds() - certificates::kBackdateSeconds,
                            NowSeconds() + options_.validity_s};
  HOLDFAST_ASSIGN_OR_RETURN(const Certificate made, authority.Sign(key.get(), issue));
  // Machines that join compare the authority in the chain with the hash in their token.
  HOLDFAST_RETURN_IF_ERROR(
      certificates::InstallIdentity(files, made.ToPem() + authority.certificate().ToPem(), key));
  Log(LogLevel::kInfo, "CertificateRenewed",
      {Kv("name", uris.front()), Kv("until", FormatUtc(issue.not_after * kNanosOfSecond))});
  return Status::Ok();
}

}  // namespace holdfast::coord
