#include "agent/peers/peer_name.h"

#include <fmt/format.h>

#include "base/certificates/certificate.h"

namespace holdfast::agent {

Status CheckPeerName(const TlsPeer& peer, const std::string& cluster, const std::string& node,
                     const certificates::RevokedNames* revoked) {
  if (peer.uris.empty()) return Status::Ok();
  const std::string& uri = peer.uris.front();
  if (peer.uris.size() > 1 || uri != certificates::SpiffeUri(cluster, "agent", node)) {
    return PermissionDeniedError(fmt::format(
        "the certificate of node '{}' names {}: a node may speak only for itself", node, uri));
  }
  if (revoked != nullptr && revoked->Refuses(uri, peer.not_before)) {
    return PermissionDeniedError(fmt::format("the certificate of node '{}' is revoked", node));
  }
  return Status::Ok();
}

}  // namespace holdfast::agent
