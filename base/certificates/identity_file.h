#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/certificates/certificate.h"
#include "base/certificates/private_key.h"
#include "base/status.h"

namespace holdfast::certificates {

/// The certificate of this machine or person, and its key. If both are one file, each certificate
/// has a new key, and the file is replaced in one step. Otherwise the key stays.
struct IdentityFiles {
  std::string cert;
  std::string key;
};

/// Returns whether a certificate of this cluster's authority has used two thirds of its time.
bool DueForRenewal(const Certificate& certificate, int64_t now);

/// Reads the certificate of this machine.
Result<Certificate> ReadIdentity(const IdentityFiles& files);
/// Returns the key for the next certificate: a new one, or the one in its separate file.
Result<PrivateKey> NextKey(const IdentityFiles& files);
/// Replaces the certificate, and the key if both are one file. Durable when this returns. The files
/// keep their owner. `certificate_pem` may have further certificates of the chain.
Status InstallIdentity(const IdentityFiles& files, std::string_view certificate_pem,
                       const PrivateKey& key);

}  // namespace holdfast::certificates
