#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "storage/base/status.h"

namespace holdfast::coord {

/// Longest path of a unix socket (sun_path without its NUL).
inline constexpr size_t kUnixPathBytesMax = 107;

/// Where a service listens or is found: "127.0.0.1:7070", "[::1]:0", "host:7070" or "unix:/path".
struct Endpoint {
  enum class Kind { kUnix, kTcp };
  Kind kind = Kind::kTcp;
  std::string path;  // kUnix: absolute
  std::string host;  // kTcp: an address without brackets, or a name
  uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;

  /// Only reachable from this machine: a unix socket, 127.0.0.0/8, ::1 or "localhost".
  bool IsLocal() const;
  /// The form that ParseEndpoint reads.
  std::string ToString() const;
  /// The form that gRPC clients dial.
  std::string ToGrpcTarget() const;
  /// The form that gRPC servers bind.
  std::string ToGrpcListen() const;
};

/// InvalidArgument says what is wrong and shows the accepted forms.
Result<Endpoint> ParseEndpoint(std::string_view text);

/// The IP addresses of its host, those of a name as the resolver knows them now (which may take
/// seconds); none for a unix socket. Unavailable: the name is not known.
Result<std::vector<std::string>> NumericAddresses(const Endpoint& endpoint);

}  // namespace holdfast::coord
