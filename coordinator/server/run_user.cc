#include "coordinator/server/run_user.h"

#include <fmt/format.h>
#include <pwd.h>

#include <algorithm>
#include <array>

namespace holdfast::coord {
namespace {
/// `root`: the configuration names the user, who may therefore be root.
Result<uid_t> UserNamed(const std::string& name, bool root) {
  std::array<char, 16'384> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  ::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) {
    return Fail(NotFoundError(fmt::format(
        "no user '{}' exists on the coordinator's machine, so no workers can run as that user",
        name)));
  }
  if (found->pw_uid == 0 && !root) {
    return Fail(PermissionDeniedError(fmt::format(
        "workers of '{}' would run as root; root itself may ask for that over the coordinator's "
        "unix socket, and an operator if access.run_as_users of the coordinator names root",
        name)));
  }
  return found->pw_uid;
}
}  // namespace

Result<uid_t> RunUserOf(const Caller& caller, const std::string& run_as,
                        const std::vector<std::string>& allowed) {
  if (run_as.empty()) {
    if (caller.uid) return *caller.uid;
    if (!caller.user.empty()) return UserNamed(caller.user, false);
    return Fail(PermissionDeniedError(fmt::format(
        "{} names no user, and workers run as the user who asks; use a certificate with a name "
        "spiffe://CLUSTER/runner/USER, or --user with a user of the coordinator's "
        "access.run_as_users",
        caller.name)));
  }
  if ((caller.roles & (Role::kOperator | Role::kRunner)) == 0) {
    return Fail(PermissionDeniedError(
        fmt::format("only an operator or a runner may start workers of another user; {} has {}",
                    caller.name, ToString(caller.roles))));
  }
  // The own user needs no permission to name itself.
  if (!caller.uid && run_as == caller.user) return UserNamed(run_as, false);
  if (std::ranges::find(allowed, run_as) == allowed.end()) {
    return Fail(PermissionDeniedError(fmt::format(
        "workers may not run as '{}': access.run_as_users of the coordinator does not name that "
        "user",
        run_as)));
  }
  return UserNamed(run_as, true);
}

Status CheckMayStop(const Caller& caller, const std::string& job, const JobOwner& owner,
                    const std::vector<std::string>& allowed) {
  const bool certificate_of_runner = !caller.uid && (caller.roles & Only(Role::kOperator)) == 0;
  if (!certificate_of_runner || !owner.exists) return Status::Ok();
  const auto owns = [&owner](const std::string& name) {
    const auto uid = UserNamed(name, true);
    return uid && owner.uid == *uid;
  };
  if (owns(caller.user) || std::ranges::any_of(allowed, owns)) return Status::Ok();
  return PermissionDeniedError(fmt::format(
      "job '{}' belongs to {}; {} may stop jobs of '{}' and of the users in access.run_as_users of "
      "the coordinator",
      job, owner.uid ? fmt::format("uid {}", *owner.uid) : "no user that is known", caller.name,
      caller.user));
}

}  // namespace holdfast::coord
