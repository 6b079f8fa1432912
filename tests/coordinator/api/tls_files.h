#pragma once

#include "coordinator/api/tls_credentials.h"
#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::coord {

/// The files of a certificate for a gRPC connection.
inline TlsFiles FilesOf(const agent::PeerTlsFiles& files) {
  return {files.ca, files.cert, files.key};
}

}  // namespace holdfast::coord
