#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agent/peers/config.h"
#include "base/config.h"
#include "base/metrics/metrics_options.h"
#include "coordinator/api/channel.h"

namespace holdfast::agent {

/// The configuration of an agent. The defaults suit a single machine.
struct AgentConfig {
  AgentConfig();

  std::string cluster = "holdfast";
  std::string node;  // default: the host's name
  std::string coordinator = "unix:/run/holdfast/coordinator.sock";
  int64_t relay_return_s = 60;
  std::string data_listen;  // empty: data.sock in run_dir
  std::string run_dir = "/run/holdfast";
  std::vector<std::string> data_dirs = {"/var/lib/holdfast/data"};
  std::string log_level = "info";
  uint64_t arena_bytes = 4ULL << 30;
  bool start_keeper = true;
  int64_t disk_every_steps = 0;
  bool io_uring = true;
  bool direct = true;
  int64_t queue_depth = 16;
  coord::TlsFiles tls;
  bool tls_renew = false;
  coord::AccessOptions access;
  bool peers_enabled = true;
  PeersConfig peers;
  int64_t peer_every_steps = 0;
  int64_t peer_build_timeout_ms = 30'000;
  std::string remote_url;  // empty: no tier remote
  int64_t remote_requests_in_flight = 4;
  int64_t remote_shards_at_once = 2;
  std::string files_group;  // empty: none
  uint64_t scrub_bytes_per_s = 64ULL << 20;
  int64_t scrub_pause_ms = 3'600'000;
  int64_t shutdown_grace_s = 30;
  std::vector<std::string> labels;  // name=value
  int64_t sessions_per_user = 256;
  int64_t silent_per_user = 64;
  int64_t arena_percent_per_user = 75;
  uint64_t arena_bytes_per_job = 0;  // 0: no limit
  std::vector<std::string> arena_priority_jobs;
  int64_t arena_priority_percent = 0;
  uint64_t disk_bytes_per_job = 0;   // 0: no limit
  uint64_t disk_bytes_per_user = 0;  // 0: no limit
  bool workers_enabled = false;
  std::string workers_address = "127.0.0.1";
  std::string workers_log_dir = "/var/log/holdfast";
  std::string workers_default_user;  // empty: none
  std::string nvml_library = "libnvidia-ml.so.1";
  coord::MetricsOptions metrics;

  /// Adds every field to `schema`. The configuration must outlive the schema.
  void Bind(ConfigSchema& schema);
  /// Returns `labels` as a map. InvalidArgument for a label without a name or a value.
  Result<std::map<std::string, std::string>> Labels() const;
  /// Returns the configuration with the addresses that depend on run_dir.
  AgentConfig Resolved() const;
  /// Checks what the schema cannot: names, endpoints, paths, levels.
  Status Check() const;
  /// Calls Check(), and also checks the content of the files that the configuration names, so that
  /// a start refuses a bad configuration before it changes anything.
  Status CheckStart() const;
};

}  // namespace holdfast::agent
