#pragma once

#include <cstdint>
#include <string>

#include "coordinator/api/channel.h"
#include "storage/base/config.h"

namespace holdfast::coord {

struct CoordinatorConfig {
  std::string cluster = "holdfast";
  std::string listen = "127.0.0.1:7070";
  std::string data_dir = "/var/lib/holdfast/coordinator";
  int64_t node_lease_ms = 3000;
  std::string log_level = "info";
  int64_t keep_last = 3;
  int64_t keep_every = 0;
  bool peers_enabled = true;
  int64_t peers_group_nodes = 8;
  int64_t peers_parity = 0;
  std::string peers_domain_label = "rack";
  std::string restart_command;
  std::string metrics_listen;
  bool drills_enabled = false;
  TlsFiles tls;
};

/// The keys of holdfast-coordinator's configuration file, bound to `config`, which outlives them.
ConfigSchema BindConfig(CoordinatorConfig& config);

}  // namespace holdfast::coord
