#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace holdfast::certificates {

/// The names whose certificates are revoked. A certificate of such a name is refused if it begins
/// at or before the time of the revocation. Thread-safe.
class RevokedNames {
 public:
  /// By role and name: the time of the revocation, in seconds since 1970.
  using Times = std::map<std::pair<std::string, std::string>, int64_t>;

  /// Returns whether the list differs from the one before.
  bool Replace(Times times);
  /// Returns the time of the revocation of a spiffe:// name of any cluster; 0: not revoked.
  int64_t RevokedAt(std::string_view uri) const;
  /// Returns whether a certificate with this name, which begins at `not_before`, is refused.
  bool Refuses(std::string_view uri, int64_t not_before) const;
  /// The same, for a certificate in PEM form. Its validity is read only if the name is revoked.
  bool RefusesPem(std::string_view uri, std::string_view certificate_pem) const;

 private:
  std::atomic<std::shared_ptr<const Times>> times_{std::make_shared<const Times>()};
};

}  // namespace holdfast::certificates
