#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "coordinator/api/channel.h"

namespace holdfast::faults {

/// The configuration of a fault injector. The defaults suit a node whose agent has the defaults.
struct InjectorConfig {
  InjectorConfig();

  std::string cluster = "holdfast";
  std::string node;  // default: the host's name; empty: no agent runs here
  std::string listen = "unix:/run/holdfast/fault.sock";
  std::string run_dir = "/run/holdfast-fault";
  std::string agent_run_dir = "/run/holdfast";
  std::vector<std::string> data_dirs = {"/var/lib/holdfast/data"};
  std::string coordinator = "unix:/run/holdfast/coordinator.sock";
  std::string log_level = "info";
  bool drills_enabled = false;
  bool restart_servers = true;
  coord::TlsFiles tls;
  coord::AccessOptions access;

  /// Adds every field to `schema`. The configuration must outlive the schema.
  void Bind(ConfigSchema& schema);
  /// Checks everything that can be checked before the start: names, addresses, paths, TLS files.
  Status Check() const;
};

}  // namespace holdfast::faults
