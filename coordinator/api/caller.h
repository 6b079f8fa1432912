#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/certificates/revoked_names.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/endpoint.h"
#include "base/status.h"
#include "coordinator/api/access.h"
#include "coordinator/api/unix_connections.h"

namespace holdfast::coord {

/// Who has which roles, besides what a certificate or the owner of a socket decides.
struct AccessOptions {
  /// Members of this group of the system are viewers, operators and runners, where no TLS is
  /// configured.
  std::string operators_group = "holdfast-operators";
  /// Users whose processes are agents, besides root and the user of the server.
  std::vector<std::string> agent_users;
  /// Refuses certificates without a name of the form spiffe://CLUSTER/ROLE/NAME.
  bool require_names = false;

  /// Adds the key access.operators_group, and for a coordinator access.agent_users.
  void Bind(ConfigSchema& schema, bool coordinator);
  /// Adds the key tls.require_names; after the other keys of [tls].
  void BindNames(ConfigSchema& schema);
};

/// The process or machine that makes a call.
struct Caller {
  RoleSet roles = kNoRoles;
  std::string name;          // e.g. "user alice (uid 1001)" or "spiffe://c1/agent/n0"
  std::string from;          // its address, e.g. "ipv4:127.0.0.1:40000" or "unix:/run/c.sock"
  std::string remedy;        // how a caller like this gets another role
  std::optional<uid_t> uid;  // a user of this machine
  std::string user;          // name of the user, or in a certificate; may be empty
};

/// Identifies the callers of one server. Thread-safe.
class CallerRegistry {
 public:
  /// `clock` outlives the registry.
  CallerRegistry(std::string cluster, AccessOptions options, const Clock& clock);
  ~CallerRegistry();

  /// Sets where the server listens. Until then, callers have no role.
  void Serve(const Endpoint& endpoint, bool tls);
  /// Callers whose certificates are revoked get no role. `revoked` outlives the registry; before
  /// the first call.
  void Refuse(const certificates::RevokedNames& revoked) { revoked_ = &revoked; }
  /// Returns the caller of `call`, which is in progress.
  Caller Identify(grpc_call* call) const;
  /// Returns the connections of the unix socket, which its acceptor keeps.
  UnixConnections& connections() { return *connections_; }
  /// Uses the connections of another service of the same server. Before the first call.
  void ShareConnections(const CallerRegistry& other) { connections_ = other.connections_; }

 private:
  struct Listening;
  class Users;
  Caller IdentifyCertificate(grpc_call* call) const;
  Caller IdentifyConnection(const std::string& peer, const std::string& path) const;
  Caller IdentifyOwner(const std::string& peer, const Listening& listening) const;
  std::string Remedy() const;

  const std::string cluster_;
  const AccessOptions options_;
  const certificates::RevokedNames* revoked_ = nullptr;
  std::unique_ptr<Users> users_;
  std::shared_ptr<UnixConnections> connections_ = std::make_shared<UnixConnections>();
  std::atomic<std::shared_ptr<const Listening>> listening_;
};

/// A name in a certificate: spiffe://CLUSTER/ROLE/NAME.
struct SpiffeName {
  std::string cluster;
  Role role = Role::kViewer;
  std::string name;
};
/// Parses a name. InvalidArgument: another form, or no such role.
Result<SpiffeName> ParseSpiffeName(std::string_view uri);

/// Returns the name in the caller's certificate if that has the role relay; else an empty text.
std::string RelayNameOf(const grpc::ServerContextBase& context);

/// Returns OK, or PermissionDenied if the caller's certificate names another node than `node`.
/// Certificates without a name, and callers without TLS, may be any node.
Status CheckOwnNode(const grpc::ServerContextBase& context, const std::string& node);

}  // namespace holdfast::coord
