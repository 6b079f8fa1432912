#include "base/certificates/revoked_names.h"

#include "base/certificates/certificate.h"

namespace holdfast::certificates {

bool RevokedNames::Replace(Times times) {
  if (*times_.load() == times) return false;
  times_.store(std::make_shared<const Times>(std::move(times)));
  return true;
}

int64_t RevokedNames::RevokedAt(std::string_view uri) const {
  const std::shared_ptr<const Times> times = times_.load();
  if (times->empty()) return 0;
  const auto parts = SplitSpiffeUri(uri);
  if (!parts) return 0;
  const auto found = times->find({std::string(parts->role), std::string(parts->name)});
  return found == times->end() ? 0 : found->second;
}

bool RevokedNames::Refuses(std::string_view uri, int64_t not_before) const {
  const int64_t revoked = RevokedAt(uri);
  return revoked != 0 && not_before <= revoked;
}

bool RevokedNames::RefusesPem(std::string_view uri, std::string_view certificate_pem) const {
  const int64_t revoked = RevokedAt(uri);
  if (revoked == 0) return false;
  const auto certificate = Certificate::FromPem(certificate_pem);
  return !certificate || certificate->not_before() <= revoked;
}

}  // namespace holdfast::certificates
