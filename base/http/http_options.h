#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace holdfast {

/// The program's certificate, in PEM form: tls.cert and tls.key. Empty: the program has none.
struct HttpCertificate {
  std::string cert;
  std::string key;
};

/// Where a program answers HTTP requests, and with which token.
struct HttpOptions {
  std::string section;     // of the configuration, for messages: "metrics"
  std::string listen;      // HOST:PORT or unix:/path
  std::string token_file;  // empty: no token
};

inline constexpr size_t kHttpTokenBytesMin = 16;
inline constexpr size_t kHttpTokenBytesMax = 4096;

/// Checks the options and the files that they name. InvalidArgument and PermissionDenied name the
/// key to change.
Status CheckHttp(const HttpOptions& options, const HttpCertificate& tls);

/// Reads a token, without white space at its end. `key` names the file in messages.
/// PermissionDenied when other users may access the file.
Result<std::string> ReadHttpToken(std::string_view key, const std::string& path);

}  // namespace holdfast
