#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/metrics/metrics_options.h"
#include "coordinator/api/channel.h"
#include "coordinator/contract/runs.h"
#include "coordinator/relay/relay_server.h"
#include "coordinator/ui/ui_options.h"

namespace holdfast::coord {

/// The value of `store` for the RocksDB in data_dir.
inline constexpr const char* kEmbeddedStore = "embedded";

/// The values of `role`.
inline constexpr const char* kCoordinatorRole = "coordinator";
inline constexpr const char* kRelayRole = "relay";

struct CoordinatorConfig {
  std::string cluster = "holdfast";
  std::string role = kCoordinatorRole;
  std::vector<std::string> upstream;  // of a relay: the coordinators
  std::string listen = "unix:/run/holdfast/coordinator.sock";
  std::string data_dir = "/var/lib/holdfast/coordinator";
  std::string store = kEmbeddedStore;
  std::string advertise;  // empty: `listen`
  bool rebuild = false;   // set by --rebuild only
  int64_t etcd_lease_s = 3;
  int64_t etcd_request_bytes_max = 3 << 19;
  TlsFiles etcd_tls;
  int64_t node_lease_ms = 3000;
  std::string log_level = "info";
  int64_t keep_last = 3;
  int64_t keep_every = 0;
  int64_t remote_every = 0;
  int64_t remote_interval_s = 0;
  int64_t remote_keep_last = 3;
  int64_t remote_keep_every = 0;
  int64_t release_after_s = 5;
  int64_t release_dead_after_s = 3600;
  int64_t forget_after_s = 0;
  bool peers_enabled = true;
  int64_t peers_group_nodes = 8;
  int64_t peers_parity = 0;
  std::string peers_domain_label = "rack";
  int64_t peers_rehome_after_s = 600;
  std::string restart_command;
  int64_t restart_timeout_ms = 60'000;
  int64_t restart_attempts = 5;
  int64_t restart_cooldown_ms = 30'000;
  std::string detect_action = "restart";
  int64_t detect_alert_after_ms = 5'000;
  int64_t detect_restart_stuck_after_ms = 60'000;
  int64_t detect_restart_absent_after_ms = 600'000;
  MetricsOptions metrics;
  ui::UiOptions ui;
  TlsFiles tls;
  bool tls_renew = false;         // of a relay
  std::string join_listen;        // empty: no machine joins here
  std::string join_coordinators;  // empty: this coordinator
  std::string join_ca_key;        // empty: this coordinator issues no certificates
  int64_t join_certificate_s = 86'400;
  AccessOptions access;
  std::vector<std::string> run_as_users;
  int64_t jobs_per_user = 1000;
};

/// Returns the keys of holdfast-coordinator's configuration file, bound to `config`, which must
/// outlive them.
ConfigSchema BindConfig(CoordinatorConfig& config);
/// Checks everything that can be checked before the start: names, addresses, levels, groups and TLS
/// files.
Status CheckConfig(const CoordinatorConfig& config);

/// Returns the part of the configuration that a relay uses.
relay::RelayOptions RelayOptionsOf(const CoordinatorConfig& config);

/// Parses off, alert or restart; anything else is InvalidArgument.
Result<DetectAction> ParseDetectAction(const std::string& text);

}  // namespace holdfast::coord
