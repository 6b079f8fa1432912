#include "coordinator/api/access.h"

#include <fmt/format.h>

#include <algorithm>

namespace holdfast::coord {
namespace {
constexpr std::string_view kCoordinator = "Coordinator";
constexpr std::string_view kCertificates = "Certificates";
constexpr std::string_view kRelays = "Relays";
constexpr std::string_view kAgent = "Agent";
constexpr std::string_view kFaults = "FaultInjector";

constexpr RoleSet kReaders = Role::kViewer | Role::kOperator | Role::kRunner;
// Agents and relays ask for the epoch, to find the coordinator that leads, and see only names of
// jobs.
constexpr RoleSet kReadersAndAgents = kReaders | Role::kAgent | Role::kRelay;
constexpr RoleSet kRunners = Only(Role::kRunner);
constexpr RoleSet kOperators = Only(Role::kOperator);
constexpr RoleSet kAgents = Only(Role::kAgent);
// A relay passes these calls on for the agents that are attached through it.
constexpr RoleSet kAgentsAndRelays = Role::kAgent | Role::kRelay;
constexpr RoleSet kRelayOnly = Only(Role::kRelay);

constexpr AccessRule kRules[] = {
    {kCoordinator, "Attach", kAgents},
    {kCoordinator, "Report", kAgents},
    {kCoordinator, "Join", kAgentsAndRelays},
    {kCoordinator, "Observe", kAgents},
    {kCoordinator, "DecideRestore", kAgentsAndRelays},
    {kCoordinator, "GetStatus", kReadersAndAgents, UserRule::kOwnJobs},
    {kCoordinator, "ListVersions", kReaders, UserRule::kOwnJob},
    {kCoordinator, "PlanRestore", kAgentsAndRelays | Role::kOperator, UserRule::kOwnJob},
    {kCoordinator, "Pin", kOperators, UserRule::kOwnJob},
    {kCoordinator, "RecordVerification", kOperators, UserRule::kOwnJob},
    {kCoordinator, "Retain", kOperators, UserRule::kOwnJob},
    {kCoordinator, "ForgetJob", kOperators, UserRule::kOwnJob},
    {kCoordinator, "StartRun", kRunners, UserRule::kNewJob, "spec.job"},
    {kCoordinator, "StopRun", kRunners, UserRule::kOwnJob},
    {kCoordinator, "GetRuns", kReaders, UserRule::kOwnJobs},
    {kCoordinator, "ListIncidents", kReaders, UserRule::kOwnJobs},
    {kCoordinator, "AcknowledgeIncident", kOperators},
    {kCoordinator, "WhatIfLost", kReaders, UserRule::kOwnJobs},
    {kCoordinator, "Quarantine", kOperators},
    {kCoordinator, "Drain", kOperators},
    {kCoordinator, "GetDrain", kReaders},
    {kCoordinator, "Adopt", kOperators},
    {kCoordinator, "GetAudit", kOperators},
    {kCoordinator, "Backup", kOperators},
    {kRelays, "Open", kRelayOnly},
    {kRelays, "Forward", kRelayOnly},
    {kCertificates, "CreateToken", kOperators},
    {kCertificates, "Renew", kAllRoles},
    {kCertificates, "Revoke", kOperators},
    {kCertificates, "ListIdentities", kOperators},
    {kCertificates, "WatchTrust", kAgentsAndRelays},
    {kAgent, "ReadShard", Role::kOperator | Role::kAgent, UserRule::kOwnJob},
    {kAgent, "VerifyShard", kOperators, UserRule::kOwnJob},
    {kAgent, "ReadWorkerLog", Role::kOperator | Role::kRunner, UserRule::kOwnJob},
    {kAgent, "Dump", kOperators},
    {kFaults, "Inject", kOperators},
    {kFaults, "End", kOperators},
};
}  // namespace

std::string_view ToString(Role role) {
  switch (role) {
    case Role::kViewer:
      return "viewer";
    case Role::kOperator:
      return "operator";
    case Role::kRunner:
      return "runner";
    case Role::kAgent:
      return "agent";
    case Role::kRelay:
      return "relay";
    case Role::kUser:
      return "user";
  }
  return "unknown";
}

RoleSet RoleNamed(std::string_view name) {
  for (const Role role : kRoles) {
    if (role != Role::kUser && ToString(role) == name) return Only(role);
  }
  return kNoRoles;
}

std::string ToString(RoleSet roles) {
  std::string text;
  for (const Role role : kRoles) {
    if ((roles & Only(role)) == 0) continue;
    if (!text.empty()) text += ", ";
    text += ToString(role);
  }
  return text.empty() ? "no role" : text;
}

std::span<const AccessRule> AccessRules() { return kRules; }

const AccessRule* FindAccessRule(std::string_view service, std::string_view method) {
  service.remove_prefix(service.rfind('.') + 1);  // npos + 1 is 0
  const auto* const found = std::ranges::find_if(kRules, [&](const AccessRule& rule) {
    return rule.service == service && rule.method == method;
  });
  return found == std::end(kRules) ? nullptr : found;
}

std::string_view ToString(UserRule rule) {
  switch (rule) {
    case UserRule::kNever:
      return "";
    case UserRule::kOwnJob:
      return "own job";
    case UserRule::kOwnJobs:
      return "own jobs";
    case UserRule::kNewJob:
      return "own or new job";
  }
  return "";
}

std::string AccessTable() {
  std::string table;
  for (const AccessRule& rule : kRules) {
    table += fmt::format("| `{}.{}` |", rule.service, rule.method);
    for (const Role role : kRoles) {
      if (role != Role::kUser) table += (rule.roles & Only(role)) != 0 ? " yes |" : " |";
    }
    const std::string_view users = ToString(rule.users);
    table += users.empty() ? " |\n" : fmt::format(" {} |\n", users);
  }
  return table;
}

}  // namespace holdfast::coord
