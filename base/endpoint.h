#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace holdfast {

/// Longest path of a unix socket (sun_path without its NUL).
inline constexpr size_t kUnixPathBytesMax = 107;

/// Address of a service: "127.0.0.1:7070", "[::1]:0", "host:7070" or "unix:/path".
struct Endpoint {
  enum class Kind { kUnix, kTcp };
  Kind kind = Kind::kTcp;
  std::string path;  // kUnix: absolute
  std::string host;  // kTcp: an address without brackets, or a name
  uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;

  /// Returns whether only this machine can reach the address: a unix socket, 127.0.0.0/8, ::1 or
  /// "localhost".
  bool IsLocal() const;
  /// Returns the form that ParseEndpoint() reads.
  std::string ToString() const;
};

/// Parses an address. InvalidArgument states the error and shows the accepted forms.
Result<Endpoint> ParseEndpoint(std::string_view text);

/// Parses one or more addresses, separated by commas, all different and none with port 0.
Result<std::vector<Endpoint>> ParseEndpointList(std::string_view text);

/// Returns the IP addresses of the host; a name is resolved now, which may take seconds. Returns
/// none for a unix socket. Unavailable: the resolver does not find the name.
Result<std::vector<std::string>> NumericAddresses(const Endpoint& endpoint);

}  // namespace holdfast
