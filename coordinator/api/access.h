#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace holdfast::coord {

/// What a caller of a gRPC service is to the cluster. A caller may have several roles. The numbers
/// are bits of a RoleSet.
enum class Role : uint8_t { kViewer = 1, kOperator = 2, kRunner = 4, kAgent = 8 };

/// A set of roles: the sum of their bits.
using RoleSet = uint8_t;
inline constexpr RoleSet kNoRoles = 0;
inline constexpr RoleSet kAllRoles = 15;
inline constexpr Role kRoles[] = {Role::kViewer, Role::kOperator, Role::kRunner, Role::kAgent};

constexpr RoleSet Only(Role role) { return static_cast<RoleSet>(role); }
constexpr RoleSet operator|(Role a, Role b) { return static_cast<RoleSet>(Only(a) | Only(b)); }
constexpr RoleSet operator|(RoleSet a, Role b) { return static_cast<RoleSet>(a | Only(b)); }

/// Returns viewer, operator, runner or agent.
std::string_view ToString(Role role);
/// Returns the role with this name as a set; kNoRoles for any other text.
RoleSet RoleNamed(std::string_view name);
/// Returns the names of the roles in the set, separated by ", "; "no role" for an empty set.
std::string ToString(RoleSet roles);

/// One method and the roles that may call it. One of the roles suffices.
struct AccessRule {
  std::string_view service;  // without its package: Coordinator, Agent or FaultInjector
  std::string_view method;
  RoleSet roles = kNoRoles;
};

/// Returns the rules of all methods of the coordinator, the agents and the fault injectors.
std::span<const AccessRule> AccessRules();
/// Returns the rule of a method of a service, whose name may have its package; null: the method has
/// none, and no caller may use it.
const AccessRule* FindAccessRule(std::string_view service, std::string_view method);
/// Returns the rules as the rows of a Markdown table: a method, and a column for each role.
std::string AccessTable();

}  // namespace holdfast::coord
