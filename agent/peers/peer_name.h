#pragma once

#include <string>

#include "agent/peers/tls.h"
#include "base/certificates/revoked_names.h"
#include "base/status.h"

namespace holdfast::agent {

/// Checks that a connection is of the node that it claims. A certificate with a spiffe:// name must
/// be of this cluster, of the role agent and of `node`, and must not be revoked. PermissionDenied
/// names what differs. Certificates without a name, and connections without TLS, are of any node.
/// `revoked` null: no name is.
Status CheckPeerName(const TlsPeer& peer, const std::string& cluster, const std::string& node,
                     const certificates::RevokedNames* revoked);

}  // namespace holdfast::agent
