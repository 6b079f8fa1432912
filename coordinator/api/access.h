#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace holdfast::coord {

/// What a caller of a gRPC service is to the cluster. A caller may have several roles. The numbers
/// are bits of a RoleSet.
enum class Role : uint8_t {
  kViewer = 1,
  kOperator = 2,
  kRunner = 4,
  kAgent = 8,
  kUser = 16,
  kRelay = 32
};

/// A set of roles: the sum of their bits.
using RoleSet = uint8_t;
inline constexpr RoleSet kNoRoles = 0;
inline constexpr RoleSet kAllRoles = 63;
inline constexpr Role kRoles[] = {Role::kViewer, Role::kOperator, Role::kRunner,
                                  Role::kAgent,  Role::kRelay,    Role::kUser};

constexpr RoleSet Only(Role role) { return static_cast<RoleSet>(role); }
constexpr RoleSet operator|(Role a, Role b) { return static_cast<RoleSet>(Only(a) | Only(b)); }
constexpr RoleSet operator|(RoleSet a, Role b) { return static_cast<RoleSet>(a | Only(b)); }

/// Returns viewer, operator, runner, agent, relay or user.
std::string_view ToString(Role role);
/// Returns the role with this name as a set; kNoRoles for any other text, and for user, which is
/// the role of a local user and never of a certificate.
RoleSet RoleNamed(std::string_view name);
/// Returns the names of the roles in the set, separated by ", "; "no role" for an empty set.
std::string ToString(RoleSet roles);

/// What a caller with the role user, and with no other role of a rule, may do with a method.
enum class UserRule : uint8_t {
  kNever,
  kOwnJob,   // the request names a job of the caller
  kOwnJobs,  // the answer has only jobs of the caller; a job that the request names is one of them
  kNewJob,   // the request names a job of the caller, or a job that does not exist
};
/// Returns the cell of the rule in the table of docs/security.md, e.g. "own job".
std::string_view ToString(UserRule rule);

/// One method and the roles that may call it for every job. One of the roles suffices.
struct AccessRule {
  std::string_view service;  // without its package, e.g. Coordinator
  std::string_view method;
  RoleSet roles = kNoRoles;
  UserRule users = UserRule::kNever;
  std::string_view job_field = "job";  // of the request; parts are separated by dots
};

/// Returns the rules of all methods of the coordinator, the agents and the fault injectors.
std::span<const AccessRule> AccessRules();
/// Returns the rule of a method of a service, whose name may have its package; null: the method has
/// none, and no caller may use it.
const AccessRule* FindAccessRule(std::string_view service, std::string_view method);
/// Returns the rules as the rows of a Markdown table: a method, and a column for each role.
std::string AccessTable();

}  // namespace holdfast::coord
