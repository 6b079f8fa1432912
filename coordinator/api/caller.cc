#include "coordinator/api/caller.h"

#include <fmt/format.h>
#include <grp.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/certificates/certificate.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "coordinator/api/socket_owner.h"

namespace holdfast::coord {
namespace {
// Looking a user up may ask a directory service, and agents call ten times a second.
constexpr std::chrono::seconds kUserAgeMax(10);
constexpr size_t kUsersMax = 4096;
constexpr int kGroupsMax = 65'536;

std::vector<std::string> Properties(grpc_call* call, const char* name) {
  std::vector<std::string> values;
  grpc_auth_context* context = grpc_call_auth_context(call);
  if (context == nullptr) return values;
  auto at = grpc_auth_context_find_properties_by_name(context, name);
  while (const grpc_auth_property* property = grpc_auth_property_iterator_next(&at)) {
    values.emplace_back(property->value, property->value_length);
  }
  grpc_auth_context_release(context);
  return values;
}

/// Returns the names in a certificate that begin with spiffe://.
std::vector<std::string> SpiffeUris(grpc_call* call) {
  std::vector<std::string> uris = Properties(call, GRPC_PEER_URI_PROPERTY_NAME);
  std::erase_if(uris,
                [](const std::string& uri) { return !uri.starts_with(certificates::kSpiffe); });
  return uris;
}

std::string PeerOf(grpc_call* call) {
  char* text = grpc_call_get_peer(call);
  std::string peer = text == nullptr ? "" : text;
  gpr_free(text);
  return peer;
}
}  // namespace

void AccessOptions::Bind(ConfigSchema& schema, bool coordinator) {
  schema.Add("access.operators_group", &operators_group,
             "Members of this group of the system are operators and may start runs, over a "
             "unix socket, or a loopback address without [tls]. Root and the user of this process "
             "always are.");
  if (coordinator) {
    schema.Add("access.agent_users", &agent_users,
               "Users of the system whose processes may be agents, over a unix socket or a "
               "loopback address without [tls], besides root and the user of this process.");
  }
}

void AccessOptions::BindNames(ConfigSchema& schema) {
  schema.Add("tls.require_names", &require_names,
             "Refuse certificates without a name spiffe://CLUSTER/ROLE/NAME. Otherwise such "
             "certificates have all rights.");
}

struct CallerRegistry::Listening {
  Endpoint endpoint;
  bool tls = false;
};

/// The users of the system and their roles, each looked up at most every ten seconds.
class CallerRegistry::Users {
 public:
  Users(const AccessOptions& options, const Clock& clock) : options_(options), clock_(clock) {}

  Caller Find(uid_t uid) {
    const auto now = clock_.Now();
    {
      MutexLock lock(mutex_);
      const auto known = known_.find(uid);
      if (known != known_.end() && now - known->second.at < kUserAgeMax) {
        return known->second.caller;
      }
    }
    Caller caller = LookUp(uid);
    MutexLock lock(mutex_);
    if (known_.size() >= kUsersMax) known_.clear();
    known_[uid] = {now, caller};
    return caller;
  }

 private:
  struct Known {
    Clock::TimePoint at;
    Caller caller;
  };

  bool IsOperator(const std::string& user, gid_t gid) const {
    std::array<char, 65'536> buffer{};
    group entry{};
    group* found = nullptr;
    if (options_.operators_group.empty() ||
        ::getgrnam_r(options_.operators_group.c_str(), &entry, buffer.data(), buffer.size(),
                     &found) != 0 ||
        found == nullptr) {
      return false;
    }
    std::vector<gid_t> groups(64);
    int count = static_cast<int>(groups.size());
    while (::getgrouplist(user.c_str(), gid, groups.data(), &count) < 0) {
      if (count > kGroupsMax || count <= static_cast<int>(groups.size())) return false;
      groups.resize(static_cast<size_t>(count));
    }
    groups.resize(static_cast<size_t>(count));
    return std::ranges::find(groups, entry.gr_gid) != groups.end();
  }

  Caller LookUp(uid_t uid) const {
    Caller caller;
    std::array<char, 16'384> buffer{};
    passwd entry{};
    passwd* found = nullptr;
    ::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found);
    const std::string user = found == nullptr ? "" : found->pw_name;
    caller.name =
        user.empty() ? fmt::format("uid {}", uid) : fmt::format("user {} (uid {})", user, uid);
    caller.uid = uid;
    caller.user = user;
    caller.roles = Only(Role::kUser);
    if (uid == 0 || uid == ::geteuid()) {
      caller.roles = kAllRoles;
    } else if (!user.empty()) {
      if (IsOperator(user, found->pw_gid)) {
        caller.roles = caller.roles | Role::kViewer | Role::kOperator | Role::kRunner;
      }
      if (std::ranges::find(options_.agent_users, user) != options_.agent_users.end()) {
        caller.roles = caller.roles | Role::kAgent;
      }
    }
    return caller;
  }

  const AccessOptions options_;
  const Clock& clock_;
  Mutex mutex_;
  std::map<uid_t, Known> known_;
};

CallerRegistry::CallerRegistry(std::string cluster, AccessOptions options, const Clock& clock)
    : cluster_(std::move(cluster)),
      options_(std::move(options)),
      users_(std::make_unique<Users>(options_, clock)) {}

CallerRegistry::~CallerRegistry() = default;

void CallerRegistry::Serve(const Endpoint& endpoint, bool tls) {
  listening_.store(std::make_shared<const Listening>(Listening{endpoint, tls}));
}

Caller CallerRegistry::Identify(grpc_call* call) const {
  const std::shared_ptr<const Listening> listening = listening_.load();
  const std::string peer = PeerOf(call);
  Caller caller;
  if (listening == nullptr) {
    caller.name = "a caller during the start";
    caller.remedy = "Try again";
  } else if (listening->tls) {
    caller = IdentifyCertificate(call);
  } else if (listening->endpoint.kind == Endpoint::Kind::kUnix) {
    caller = IdentifyConnection(peer, listening->endpoint.path);
  } else {
    caller = IdentifyOwner(peer, *listening);
  }
  if (caller.from.empty()) caller.from = peer;
  return caller;
}

Caller CallerRegistry::IdentifyCertificate(grpc_call* call) const {
  Caller caller;
  caller.remedy = fmt::format("Use a certificate with a name spiffe://{}/ROLE/NAME", cluster_);
  const std::vector<std::string> uris = SpiffeUris(call);
  if (uris.empty()) {
    const auto names = Properties(call, GRPC_X509_CN_PROPERTY_NAME);
    caller.name = fmt::format("a certificate without a spiffe:// name (CN '{}')",
                              names.empty() ? "" : names.front());
    caller.roles = options_.require_names ? kNoRoles : kAllRoles;
    return caller;
  }
  caller.name = uris.front();
  auto name = ParseSpiffeName(uris.front());
  if (uris.size() > 1) {
    caller.name += fmt::format(" and {} other names in one certificate", uris.size() - 1);
  } else if (name && name->cluster == cluster_) {
    caller.roles = Only(name->role);
    caller.user = name->name;
  }
  if (revoked_ != nullptr && revoked_->RevokedAt(uris.front()) != 0) {
    const auto pem = Properties(call, GRPC_X509_PEM_CERT_PROPERTY_NAME);
    if (pem.empty() || revoked_->RefusesPem(uris.front(), pem.front())) {
      caller.name += " (revoked)";
      caller.remedy = "An operator has revoked this certificate; join again with a new token";
      caller.roles = kNoRoles;
    }
  }
  return caller;
}

Caller CallerRegistry::IdentifyConnection(const std::string& peer, const std::string& path) const {
  Caller caller;
  if (const auto known = connections_->Find(peer)) {
    caller = users_->Find(known->uid);
    caller.from = fmt::format("unix:{} (process {})", path, known->pid);
  } else {
    caller.name = "a caller whose connection is closed";
    caller.from = "unix:" + path;
  }
  caller.remedy = Remedy();
  return caller;
}

Caller CallerRegistry::IdentifyOwner(const std::string& peer, const Listening& listening) const {
  auto owner = OwnerOfPeer(peer, listening.endpoint.host, listening.endpoint.port);
  Caller caller;
  if (owner) {
    caller = users_->Find(*owner);
  } else {
    caller.name = "a caller whose user is not known (" + owner.error().message() + ")";
  }
  caller.remedy = Remedy();
  return caller;
}

std::string CallerRegistry::Remedy() const {
  return fmt::format(
      "Use root, the user of the server, or a member of the group {} (access.operators_group); an "
      "agent of another user needs access.agent_users of the coordinator",
      options_.operators_group.empty() ? "of operators" : options_.operators_group);
}

Result<SpiffeName> ParseSpiffeName(std::string_view uri) {
  SpiffeName name;
  const auto bad = [uri] {
    return Fail(InvalidArgumentError(fmt::format(
        "'{}' is not of the form spiffe://CLUSTER/ROLE/NAME with the role viewer, operator, runner"
        ", agent or relay",
        uri)));
  };
  const auto parts = certificates::SplitSpiffeUri(uri);
  if (!parts) return bad();
  const RoleSet role = RoleNamed(parts->role);
  name.cluster = parts->cluster;
  name.name = parts->name;
  if (role == kNoRoles || !ValidateName("cluster", name.cluster).ok() ||
      !ValidateName("name", name.name).ok()) {
    return bad();
  }
  name.role = static_cast<Role>(role);
  return name;
}

std::string RelayNameOf(const grpc::ServerContextBase& context) {
  for (const grpc::string_ref& value :
       context.auth_context()->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    const std::string uri(value.data(), value.size());
    auto name = ParseSpiffeName(uri);
    if (name && name->role == Role::kRelay) return uri;
  }
  return "";
}

Status CheckOwnNode(const grpc::ServerContextBase& context, const std::string& node) {
  // auth_context() is all that a handler needs: the role was checked before.
  for (const grpc::string_ref& value :
       context.auth_context()->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    const std::string uri(value.data(), value.size());
    if (!uri.starts_with(certificates::kSpiffe)) continue;
    auto name = ParseSpiffeName(uri);
    if (!name || name->role != Role::kAgent || name->name != node) {
      return PermissionDeniedError(fmt::format(
          "certificate {} may not act for node '{}'; set `node` of the agent to the name in its "
          "certificate, or issue a certificate for that node",
          uri, node));
    }
  }
  return Status::Ok();
}

}  // namespace holdfast::coord
