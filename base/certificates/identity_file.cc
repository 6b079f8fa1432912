#include "base/certificates/identity_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <optional>

#include "base/certificates/authority.h"
#include "base/certificates/durable_file.h"

namespace holdfast::certificates {
namespace {
constexpr mode_t kSecretMode = 0600;
constexpr mode_t kPublicMode = 0644;

std::optional<FileOwner> OwnerOf(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return FileOwner{info.st_uid, info.st_gid};
}
}  // namespace

bool DueForRenewal(const Certificate& certificate, int64_t now) {
  // The part before the issue does not count.
  const int64_t begin =
      std::min(certificate.not_before() + kBackdateSeconds, certificate.not_after());
  return now >= begin + (certificate.not_after() - begin) * 2 / 3;
}

Result<Certificate> ReadIdentity(const IdentityFiles& files) {
  HOLDFAST_ASSIGN_OR_RETURN(const std::string pem, ReadSmallFile(files.cert));
  return Certificate::FromPem(pem);
}

Result<PrivateKey> NextKey(const IdentityFiles& files) {
  if (files.key == files.cert) return PrivateKey::Generate();
  HOLDFAST_ASSIGN_OR_RETURN(const std::string pem, ReadSmallFile(files.key));
  return PrivateKey::FromPem(pem);
}

Status InstallIdentity(const IdentityFiles& files, std::string_view certificate_pem,
                       const PrivateKey& key) {
  const auto owner = OwnerOf(files.cert);
  if (files.key != files.cert) return ReplaceFile(files.cert, certificate_pem, kPublicMode, owner);
  return ReplaceFile(files.cert, std::string(certificate_pem) + key.ToPem(), kSecretMode, owner);
}

}  // namespace holdfast::certificates
