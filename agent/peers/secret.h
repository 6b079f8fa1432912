#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "agent/peers/sockets.h"
#include "base/status.h"

namespace holdfast::agent {

inline constexpr size_t kPeerSecretBytesMin = 16;
inline constexpr size_t kPeerSecretBytesMax = 4096;

/// Reads the secret that the nodes of a cluster share: all bytes of the file, including a newline
/// at the end. PermissionDenied when other users may access the file; InvalidArgument for a length
/// outside 16…4096 bytes.
Result<std::string> ReadPeerSecret(const std::string& path);

/// Returns InvalidArgument, with the setting to change, when there is no TLS and other machines
/// reach `address`. `what` names the address in the message: "peers.listen".
Status RequireTls(const Endpoint& address, bool has_tls, std::string_view what);

}  // namespace holdfast::agent
