#include "cli/join/operator_identity.h"

#include <unistd.h>

#include <algorithm>

#include "base/certificates/durable_file.h"
#include "base/certificates/identity_file.h"
#include "base/certificates/request.h"
#include "cli/join/certificate_client.h"

namespace holdfast::cli {
namespace {
constexpr int64_t kNanosEachSecond = 1'000'000'000;
constexpr int64_t kRenewTimeoutMs = 5'000;
constexpr mode_t kReadable = 0644;

Status Renew(const GlobalOptions& options, const certificates::IdentityFiles& files,
             const Clock& clock) {
  HOLDFAST_ASSIGN_OR_RETURN(const auto key, certificates::NextKey(files));
  HOLDFAST_ASSIGN_OR_RETURN(const auto request, certificates::Request::Make(key));
  GlobalOptions brief = options;
  brief.timeout_ms = std::min(options.timeout_ms, kRenewTimeoutMs);
  HOLDFAST_ASSIGN_OR_RETURN(CertificateClient client, CertificateClient::Open(brief, clock));
  HOLDFAST_ASSIGN_OR_RETURN(const auto reply, client.Renew(request.ToPem()));
  HOLDFAST_RETURN_IF_ERROR(certificates::ReplaceFile(options.tls_ca, reply.ca_pem(), kReadable));
  return certificates::InstallIdentity(files, reply.certificate_pem(), key);
}
}  // namespace

Status KeepOperatorIdentity(const GlobalOptions& options, const Clock& clock) {
  const certificates::IdentityFiles files{options.tls_cert, options.tls_key};
  if (files.cert.empty() || files.cert != files.key) return Status::Ok();
  const auto own = certificates::ReadIdentity(files);
  if (!own || own->SpiffeUris().empty()) return Status::Ok();
  const int64_t now = clock.WallNanos() / kNanosEachSecond;
  HOLDFAST_RETURN_IF_ERROR(certificates::CheckValidity(*own, files.cert, now));
  if (!certificates::DueForRenewal(*own, now) || ::access(files.cert.c_str(), W_OK) != 0) {
    return Status::Ok();
  }
  // The certificate is still valid, so the command itself can go on.
  [[maybe_unused]] const Status renewed = Renew(options, files, clock);
  return Status::Ok();
}

}  // namespace holdfast::cli
