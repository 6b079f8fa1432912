#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace holdfast::certificates {
struct Pin;
}  // namespace holdfast::certificates

namespace holdfast::coord {

/// TLS files in PEM form; set all three or none. Client and server authenticate each other (mutual
/// TLS). `cert` and `key` may be the same file, which is then replaced in one step.
struct TlsFiles {
  std::string ca;
  std::string cert;
  std::string key;
  /// Permits TCP over loopback without the files: other users of the machine can then take the
  /// server's place while it does not run.
  bool insecure_loopback = false;
  bool configured() const { return !ca.empty() || !cert.empty() || !key.empty(); }
};

/// What a client requires of the name in its server's certificate, if that has a name.
enum class ServerRole { kAny, kCoordinator, kCoordinatorOrRelay };

// New connections use files that have changed within two seconds. Existing ones go on. Before, the
// files are checked: InvalidArgument names the key of the one that cannot be used.

Result<std::shared_ptr<grpc::ChannelCredentials>> MakeTlsChannelCredentials(const TlsFiles& tls,
                                                                            ServerRole server);
Result<std::shared_ptr<grpc::ServerCredentials>> MakeTlsServerCredentials(const TlsFiles& tls);
/// For a server whose clients have no certificates.
Result<std::shared_ptr<grpc::ServerCredentials>> MakeOpenTlsServerCredentials(const TlsFiles& tls);
/// For a client that knows only the hash of the authority. The client sends nothing to a server
/// that CheckPinnedChain() refuses. `why` gets the reason of the last
/// refusal. `clock` outlives the credentials.
std::shared_ptr<grpc::ChannelCredentials> MakePinnedChannelCredentials(
    const certificates::Pin& pin, const Clock& clock, std::shared_ptr<Result<std::string>> why);

}  // namespace holdfast::coord
