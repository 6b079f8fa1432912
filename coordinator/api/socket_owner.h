#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/status.h"

namespace holdfast::coord {

/// Returns the user that owns the socket of a peer on this machine, as the kernel reports it for an
/// open connection (sock_diag). `peer` is gRPC's form of the peer's address, e.g.
/// "ipv4:127.0.0.1:40000" or "ipv6:%5B::1%5D:40000"; `host` and `port` are the address of the
/// server, where a `host` that is no IP address means the loopback address of the peer's family.
/// PermissionDenied: the connection is not open any more, or its owner is not known: the kernel
/// reports such sockets as those of root. InvalidArgument: not an address.
Result<uid_t> OwnerOfPeer(const std::string& peer, const std::string& host, uint16_t port);

}  // namespace holdfast::coord
