#include "cli/doctor/preflight.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>

#include "agent/config/config.h"
#include "cli/doctor/capacity_checks.h"
#include "cli/doctor/cluster_checks.h"
#include "cli/doctor/disk_checks.h"
#include "cli/doctor/host_checks.h"
#include "cli/doctor/tls_checks.h"

namespace holdfast::cli {
namespace {

constexpr const char* kPackagedConfig = "/etc/holdfast/agent.toml";

Result<Finding> Load(const PreflightOptions& options, agent::AgentConfig* config) {
  ConfigSchema schema("Configuration of holdfast-agent");
  config->Bind(schema);
  Finding finding{"configuration", Readiness::kOk, "", ""};
  const bool packaged = ::access(kPackagedConfig, F_OK) == 0;
  if (options.config_path.empty() && !packaged && options.settings.empty()) {
    finding.readiness = Readiness::kWarn;
    finding.what = fmt::format("there is no {}: the defaults are checked", kPackagedConfig);
    finding.remedy = "name the agent's configuration with --config FILE";
  } else if (!options.config_path.empty() || packaged) {
    finding.what = options.config_path.empty() ? kPackagedConfig : options.config_path;
    HOLDFAST_RETURN_IF_ERROR(schema.LoadFile(finding.what));
  } else {
    finding.what = "the defaults with --set";
  }
  for (const std::string& setting : options.settings) {
    HOLDFAST_RETURN_IF_ERROR(schema.Set(setting));
  }
  const Status status = config->CheckStart();
  if (status.ok()) return finding;
  const bool denied = status.code() == ErrorCode::kPermissionDenied && ::geteuid() != 0;
  finding.readiness = denied ? Readiness::kUnknown : Readiness::kFail;
  finding.what = status.message();
  finding.remedy = denied ? "run this command as root or as the agent's user"
                          : "correct the agent's configuration; `holdfast-agent --check-config` "
                            "repeats this check";
  return finding;
}

/// Adds the room of all disks, each counted once although several directories may be on it.
uint64_t FreeOnDisks(const std::vector<std::string>& dirs) {
  std::set<dev_t> seen;
  uint64_t bytes = 0;
  for (const std::string& dir : dirs) {
    struct stat info {};
    if (::stat(dir.c_str(), &info) == 0 && seen.insert(info.st_dev).second) bytes += FreeBytes(dir);
  }
  return bytes;
}

void CheckHost(const agent::AgentConfig& config, const LimitedProcess& process,
               Findings* findings) {
  findings->push_back(CheckKernel());
  findings->push_back(CheckIoUring(config.io_uring));
  findings->push_back(CheckHugePages());
  findings->push_back(CheckMemlock(process, config.arena_bytes));
  findings->push_back(CheckOpenFiles(process));
  findings->push_back(CheckMemory(process, config.arena_bytes));
  findings->push_back(CheckSharedMemory());
}

}  // namespace

Result<Findings> RunPreflight(const PreflightOptions& options, const GlobalOptions& global,
                              Clock& clock) {
  agent::AgentConfig config;
  HOLDFAST_ASSIGN_OR_RETURN(Finding loaded, Load(options, &config));
  Findings findings{std::move(loaded)};
  const LimitedProcess process = FindAgent(config.run_dir);
  CheckHost(config, process, &findings);
  for (const std::string& dir : config.data_dirs) {
    findings.push_back(CheckDataDir(dir, config, options.disk_bytes));
  }
  for (Finding& finding : CheckTlsDates(config.tls, config.tls_renew, clock.WallNanos())) {
    findings.push_back(std::move(finding));
  }
  Capacity capacity{options.save_bytes, config.arena_bytes, FreeOnDisks(config.data_dirs), 0};
  GlobalOptions as_agent = global;
  as_agent.endpoint = config.coordinator;
  as_agent.tls_ca = config.tls.ca;
  as_agent.tls_cert = config.tls.cert;
  as_agent.tls_key = config.tls.key;
  as_agent.insecure_loopback = config.tls.insecure_loopback;
  auto client = CoordinatorClient::Open(as_agent, clock);
  if (!client) {
    findings.push_back({"coordinator", Readiness::kFail, client.error().message(),
                        "correct `coordinator` and [tls] of the agent's configuration"});
  } else if (const auto view = CheckCoordinator(config, process, *client, clock, &findings)) {
    findings.push_back(CheckClock(*view));
    for (Finding& finding : CheckPeers(config, view->status, clock)) {
      findings.push_back(std::move(finding));
    }
    if (capacity.save_bytes == 0) {
      capacity.save_bytes = SavedBytesOf(config.node, view->status, *client);
    }
    capacity.keep_last = view->status.keep_last();
    for (const coordinator::NodeStatus& node : view->status.nodes()) {
      if (node.node() == config.node) capacity.disk_bytes += node.held_disk_bytes();
    }
  }
  for (Finding& finding : CheckCapacity(capacity)) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace holdfast::cli
