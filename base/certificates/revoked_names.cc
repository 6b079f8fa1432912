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
  if (times->empty() || !uri.starts_with(kSpiffe)) return 0;
  uri.remove_prefix(kSpiffe.size());
  const size_t role = uri.find('/');
  const size_t name = role == std::string_view::npos ? role : uri.find('/', role + 1);
  if (name == std::string_view::npos) return 0;
  const auto found = times->find(
      {std::string(uri.substr(role + 1, name - role - 1)), std::string(uri.substr(name + 1))});
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
