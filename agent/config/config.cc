#include "agent/config/config.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <set>

#include "agent/api/segment_layout.h"
#include "base/endpoint.h"
#include "base/ids.h"
#include "base/log_level.h"
#include "coordinator/api/certificate_keeper.h"
#include "coordinator/api/leader_channel.h"
#include "storage/remote/remote_url.h"

namespace holdfast::agent {
namespace {

constexpr uint64_t kArenaBytesMin = 16ULL << 20;
constexpr size_t kSocketPathMax = 107;
constexpr size_t kAddressMax = 255;

std::string HostName() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "";
  return name.data();
}

Status CheckEndpoint(std::string_view key, const std::string& text) {
  auto endpoint = ParseEndpoint(text);
  return endpoint ? Status::Ok() : endpoint.error().WithContext(key);
}

void BindNode(AgentConfig& config, ConfigSchema& schema) {
  schema.Add("cluster", &config.cluster,
             "Name of the cluster; data directories of another cluster are refused.");
  schema.Add("node", &config.node, "Name of this node, unique in the cluster.");
  schema.Add("coordinator", &config.coordinator,
             "Address of the coordinator: unix:/path or host:port. Of several coordinators: all "
             "addresses, separated by commas. host:port only with [tls], or with "
             "insecure_loopback.");
  schema.Add(
      "relay_return_s", &config.relay_return_s,
      "Seconds, on average, after which an agent returns to a relay earlier in that list that "
      "serves again; 0: never.",
      0, 86'400);
  schema.Add(
      "data_listen", &config.data_listen,
      "Address for shard readers (agents, operators): unix:/path or host:port (port 0: any). "
      "Empty: data.sock in run_dir.");
  schema.Add("insecure_loopback", &config.tls.insecure_loopback,
             "Permit TCP over loopback without [tls]. Every user of this machine can reach such an "
             "address, and listen at it while the process it belongs to does not run.");
  schema.Add("run_dir", &config.run_dir,
             "Folder of the sockets: agent.sock for trainers, keeper.sock for the keeper.");
  schema.Add("data_dirs", &config.data_dirs,
             "Folders for versions, one per device; each shard is split over all of them.");
  schema.Add("log_level", &config.log_level, "debug, info, warn or error.");
  schema.Add(
      "labels", &config.labels,
      "Location of this node, as name=value; a parity group spans nodes of several rack=… values.");
}

void BindStorage(AgentConfig& config, ConfigSchema& schema) {
  schema.AddBytes("arena.bytes", &config.arena_bytes,
                  "Memory for checkpoints on this node, for all slots of all ranks.");
  schema.Add("arena.start_keeper", &config.start_keeper,
             "Start a keeper when none answers; false: another unit or container runs "
             "holdfast-keeper.");
  schema.Add("disk.every", &config.disk_every_steps,
             "Write every k-th step to disk; 0: as often as the disks keep up.", 0, 1'000'000'000);
  schema.Add("io.io_uring", &config.io_uring, "Use io_uring where the kernel allows it.");
  schema.Add("io.direct", &config.direct, "Use O_DIRECT where the file system allows it.");
  schema.Add("io.queue_depth", &config.queue_depth, "I/O operations in flight per file.", 1, 1024);
}

void BindPeers(AgentConfig& config, ConfigSchema& schema) {
  schema.Add(
      "peers.enabled", &config.peers_enabled,
      "Protect the memory of jobs by parity on other nodes. If false, the node still serves shards "
      "that other nodes restore.");
  schema.Add("peers.every", &config.peer_every_steps,
             "Protect every k-th step; 0: as often as the peers keep up.", 0, 1'000'000'000);
  schema.Add("peers.build_timeout_ms", &config.peer_build_timeout_ms,
             "Skip a version whose parity takes longer than this.", 100, 3'600'000);
  config.peers.Bind(schema);
}

void BindRemote(AgentConfig& config, ConfigSchema& schema) {
  schema.Add("remote.url", &config.remote_url,
             "Directory of tier remote, which all nodes mount: file:///path. Empty: none.");
  schema.Add("remote.requests_in_flight", &config.remote_requests_in_flight,
             "Writes or reads in flight for each shard at tier remote.", 1, 1024);
  schema.Add("remote.shards_at_once", &config.remote_shards_at_once,
             "Shards that this node copies to or from tier remote at the same time.", 1, 64);
  schema.Add("files.group", &config.files_group,
             "Group that may read the files of versions, on disk and at tier remote (mode 0640). "
             "They belong to the user of their job where the agent may set that. Empty: none "
             "(0600).");
  schema.AddBytes(
      "scrub.bytes_per_s", &config.scrub_bytes_per_s,
      "Rate at which shards in memory and on disk are read again to find decay; 0: never.");
  schema.Add("scrub.pause_ms", &config.scrub_pause_ms,
             "Pause between two such passes and before the first.", 10, 604'800'000);
}

void BindLimits(AgentConfig& config, ConfigSchema& schema) {
  schema.Add("limits.sessions_per_user", &config.sessions_per_user,
             "Trainers of one user that can be connected. Root and this agent's user have no "
             "separate limit.",
             1, 896);
  schema.Add("limits.silent_per_user", &config.silent_per_user,
             "Connections of one user that have not sent a Hello; the oldest is closed for a new "
             "one.",
             1, 896);
  schema.Add("limits.arena_percent_per_user", &config.arena_percent_per_user,
             "Share of arena.bytes that one user other than root may have, in percent.", 1, 100);
  schema.AddBytes("limits.arena_bytes_per_job", &config.arena_bytes_per_job,
                  "Room in the arena for one job, with its parity; 0: no limit.");
  schema.Add("limits.arena_priority_jobs", &config.arena_priority_jobs,
             "Jobs with priority: their idle memory is given to other jobs last.");
  schema.Add("limits.arena_priority_percent", &config.arena_priority_percent,
             "Share of arena.bytes that only the jobs with priority get, in percent.", 0, 99);
  schema.AddBytes("limits.disk_bytes_per_job", &config.disk_bytes_per_job,
                  "Room in data_dirs for the shards of one job, with its parity; 0: no limit.");
  schema.AddBytes("limits.disk_bytes_per_user", &config.disk_bytes_per_user,
                  "Room in data_dirs for the shards of all jobs of one user other than root; 0: no "
                  "limit.");
  schema.Add("shutdown.grace_s", &config.shutdown_grace_s,
             "Time in which an agent that is stopped brings the newest version to disk. Service "
             "managers must leave 30 s more before they kill it.",
             0, 3'600);
}

void BindWorkers(AgentConfig& config, ConfigSchema& schema) {
  schema.Add("workers.enabled", &config.workers_enabled,
             "Launch the workers of `holdfast run`, as the user who asks for the run. An agent "
             "that is not root needs CAP_SETUID and CAP_SETGID for other users than its own.");
  schema.Add("workers.address", &config.workers_address,
             "Address of this node for workers on other nodes (MASTER_ADDR).");
  schema.Add("workers.log_dir", &config.workers_log_dir,
             "Folder for the output of workers: <job>/<launch>/rank-<r>.log; the newest five "
             "launches stay.");
  schema.Add("workers.default_user", &config.workers_default_user,
             "User of the workers whose run names no user, since an earlier version recorded it. "
             "Empty: such workers are refused.");
}

void BindAccess(AgentConfig& config, ConfigSchema& schema) {
  schema.Add("gpus.nvml_library", &config.nvml_library,
             "Library of the NVIDIA driver that reports errors of the node's GPUs (Xids), used "
             "where it exists; empty: never.");
  config.metrics.Bind(schema);
  config.access.Bind(schema, /*coordinator=*/false);
  schema.Add("tls.ca", &config.tls.ca, "PEM file of the authority that both sides trust.");
  schema.Add("tls.cert", &config.tls.cert, "PEM file of this node's certificate.");
  schema.Add("tls.key", &config.tls.key, "PEM file of that certificate's private key.");
  schema.Add(
      "tls.renew", &config.tls_renew,
      "Renew the certificate at the coordinator after two thirds of its time, and keep tls.ca "
      "as the coordinator has it. `holdfast join` sets this; false for certificates of "
      "another issuer. tls.cert and tls.key should be one file.");
  config.access.BindNames(schema);
}

}  // namespace

AgentConfig::AgentConfig() : node(HostName()) {}

void AgentConfig::Bind(ConfigSchema& schema) {
  for (const auto bind :
       {BindNode, BindStorage, BindPeers, BindRemote, BindLimits, BindWorkers, BindAccess})
    bind(*this, schema);
}

AgentConfig AgentConfig::Resolved() const {
  AgentConfig resolved = *this;
  if (data_listen.empty()) resolved.data_listen = "unix:" + run_dir + "/data.sock";
  if (peers.listen.empty()) resolved.peers.listen = "unix:" + run_dir + "/peers.sock";
  return resolved;
}

Status AgentConfig::Check() const {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("cluster", cluster));
  HOLDFAST_RETURN_IF_ERROR(ValidateName("node", node));
  if (auto list = ParseEndpointList(coordinator); !list) {
    return list.error().WithContext("coordinator");
  }
  if (!data_listen.empty()) HOLDFAST_RETURN_IF_ERROR(CheckEndpoint("data_listen", data_listen));
  if (run_dir.empty() || run_dir.front() != '/') {
    return InvalidArgumentError(fmt::format("run_dir '{}' is not an absolute path", run_dir));
  }
  if (run_dir.size() + std::string_view("/keeper.sock").size() > kSocketPathMax) {
    return InvalidArgumentError(
        fmt::format("run_dir '{}' is too long: the paths of its sockets may have {} characters",
                    run_dir, kSocketPathMax));
  }
  for (const std::string& job : arena_priority_jobs) {
    HOLDFAST_RETURN_IF_ERROR(ValidateName("a name in limits.arena_priority_jobs", job));
  }
  if (arena_priority_percent > 0 && arena_priority_jobs.empty()) {
    return InvalidArgumentError(fmt::format(
        "limits.arena_priority_percent keeps {} % of the arena for no job: name jobs in "
        "limits.arena_priority_jobs",
        arena_priority_percent));
  }
  if (data_dirs.empty()) {
    return InvalidArgumentError("data_dirs is empty: name at least one folder");
  }
  std::set<std::string> unique;
  for (const std::string& dir : data_dirs) {
    if (dir.empty() || dir.front() != '/') {
      return InvalidArgumentError(fmt::format("data_dirs: '{}' is not an absolute path", dir));
    }
    // Normalized, so that two spellings of one folder do not count as two devices.
    std::string plain = std::filesystem::path(dir).lexically_normal().string();
    while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
    if (!unique.insert(std::move(plain)).second) {
      return InvalidArgumentError(fmt::format("data_dirs: '{}' is given twice", dir));
    }
  }
  if (arena_bytes < kArenaBytesMin) {
    return InvalidArgumentError(fmt::format("arena.bytes {} is too small: use at least {}",
                                            FormatBytes(arena_bytes), FormatBytes(kArenaBytesMin)));
  }
  HOLDFAST_RETURN_IF_ERROR(peers.Check(tls.configured()));
  if (!remote_url.empty()) {
    HOLDFAST_ASSIGN_OR_RETURN(const std::string path, ParseRemoteUrl(remote_url));
    for (const std::string& dir : data_dirs) {
      if (std::filesystem::path(dir).lexically_normal() == path) {
        return InvalidArgumentError(fmt::format(
            "remote.url: '{}' is one of the data_dirs, which only this node uses", path));
      }
    }
  }
  if (workers_enabled && (workers_address.empty() || workers_address.size() > kAddressMax)) {
    return InvalidArgumentError(
        "workers.address must be a host name or an IP address of at most 255 characters");
  }
  if (workers_log_dir.empty() || workers_log_dir.front() != '/') {
    return InvalidArgumentError(
        fmt::format("workers.log_dir '{}' is not an absolute path", workers_log_dir));
  }
  HOLDFAST_RETURN_IF_ERROR(coord::CertificateKeeper::Check(tls, tls_renew));
  HOLDFAST_RETURN_IF_ERROR(coord::CheckMetrics(metrics, {tls.cert, tls.key}));
  auto named = Labels();
  if (!named) return named.error();
  auto level = ParseLogLevel(log_level);
  return level ? Status::Ok() : level.error();
}

Status AgentConfig::CheckStart() const {
  HOLDFAST_RETURN_IF_ERROR(Check());
  HOLDFAST_ASSIGN_OR_RETURN(const auto coordinators, ParseEndpointList(coordinator));
  for (const Endpoint& one : coordinators) {
    HOLDFAST_RETURN_IF_ERROR(coord::CheckPlain(one, tls, "coordinator"));
  }
  auto channels = coord::LeaderChannel::Make(coordinator, tls);
  if (!channels) return channels.error().WithContext("coordinator");
  const AgentConfig resolved = Resolved();
  HOLDFAST_ASSIGN_OR_RETURN(const Endpoint listen, ParseEndpoint(resolved.data_listen));
  auto credentials = coord::MakeServerCredentials(listen, tls, "data_listen");
  if (!credentials) return credentials.error();
  if (peers.secret_file.empty()) {
    HOLDFAST_ASSIGN_OR_RETURN(const Endpoint peers_listen, ParseEndpoint(resolved.peers.listen));
    HOLDFAST_RETURN_IF_ERROR(coord::CheckPlain(peers_listen, tls, "peers.listen"));
  }
  return peers.CheckFiles({tls.ca, tls.cert, tls.key});
}

Result<std::map<std::string, std::string>> AgentConfig::Labels() const {
  std::map<std::string, std::string> map;
  for (const std::string& label : labels) {
    const size_t equals = label.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == label.size()) {
      return Fail(InvalidArgumentError(fmt::format("labels: '{}' is not name=value", label)));
    }
    HOLDFAST_RETURN_IF_ERROR(ValidateName("label", label.substr(0, equals)));
    map[label.substr(0, equals)] = label.substr(equals + 1);
  }
  return map;
}

}  // namespace holdfast::agent
