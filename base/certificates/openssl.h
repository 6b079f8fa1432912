#pragma once

#include <memory>
#include <string>
#include <string_view>

// Declared here, so that this header does not include OpenSSL's.
struct bio_st;
struct evp_pkey_st;
struct x509_st;
struct X509_req_st;
struct stack_st_GENERAL_NAME;

namespace holdfast::certificates {

struct FreeKey {
  void operator()(evp_pkey_st* key) const;
};
struct FreeCertificate {
  void operator()(x509_st* certificate) const;
};
struct FreeRequest {
  void operator()(X509_req_st* request) const;
};
struct FreeNames {
  void operator()(stack_st_GENERAL_NAME* names) const;
};
struct FreeBio {
  void operator()(bio_st* bio) const;
};
using KeyHandle = std::unique_ptr<evp_pkey_st, FreeKey>;
using CertificateHandle = std::unique_ptr<x509_st, FreeCertificate>;
using RequestHandle = std::unique_ptr<X509_req_st, FreeRequest>;
using NamesHandle = std::unique_ptr<stack_st_GENERAL_NAME, FreeNames>;
using BioHandle = std::unique_ptr<bio_st, FreeBio>;

/// The largest PEM text that is read.
inline constexpr size_t kPemBytesMax = 1 << 20;

/// Returns a BIO that reads `text`, which outlives the BIO.
BioHandle ReadFrom(std::string_view text);
/// Returns a BIO in memory.
BioHandle MemoryBio();
/// Returns what was written into a BIO in memory.
std::string TakeText(bio_st* bio);
/// Returns the text of the oldest error of this thread, and empties the queue of errors.
std::string TakeErrorText();
/// Returns the SHA-256 of the public part of a key, as 64 lower-case hex digits.
std::string KeyHash(evp_pkey_st* key);

}  // namespace holdfast::certificates
