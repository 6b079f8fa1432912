#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "deploy/local/process.h"
#include "storage/base/status.h"

namespace holdfast::local {

struct ClusterOptions {
  std::string root;  // short: sockets live beneath it
  int nodes = 4;
  uint64_t arena_bytes = 256ULL << 20;
  int disk_every = 1;
  int keep_last = 3;
  int data_dirs = 1;                        // a node
  std::map<int, std::string> data_dir_of;   // node → other folder, e.g. a small mount
  std::vector<std::string> agent_settings;  // further "key=value"
  std::map<int, std::vector<std::string>> agent_settings_of;  // node → yet further ones
  /// Node → what its agent is started by, e.g. {"ip", "netns", "exec", "n3"}.
  std::map<int, std::vector<std::string>> agent_command_of;
  std::vector<std::string> coordinator_settings;
  std::string endpoint;                          // of the coordinator; a socket unless said
  std::vector<std::string> coordinator_command;  // as agent_command_of
  std::vector<std::string> cli_command;          // the same for the operator's commands
  std::vector<std::string> cli_options;          // --tls-ca …
};

/// A whole Holdfast on this machine, real processes over Unix sockets: one coordinator and an agent
/// (with its keeper) a node. What was started is ended on destruction; the files stay.
/// Thread-compatible.
class Cluster {
 public:
  explicit Cluster(ClusterOptions options);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// Starts the coordinator and all agents, and waits until all answer.
  Status Start();
  /// `crash` arms a crash point in that process ("volume.mid_write:3").
  Status StartCoordinator(const std::string& crash = "");
  Status StartAgent(int node, const std::string& crash = "");
  Status AwaitAgent(int node);
  /// From their next start on, agents run where and as `options` has it.
  void MoveAgents(const ClusterOptions& options);

  Process& coordinator() { return coordinator_; }
  Process& agent(int node) { return agents_[node]; }
  /// The keeper of a node: 0 if none runs.
  pid_t KeeperPid(int node) const;
  void KillKeeper(int node);
  /// As if the machine had burnt: agent and keeper killed, sockets and disks gone.
  void DestroyNode(int node);
  /// SIGKILL to coordinator, agents and keepers at once: the memory is gone.
  void KillEverything();

  std::string endpoint() const {
    return options_.endpoint.empty() ? "unix:" + root() + "/c.sock" : options_.endpoint;
  }
  const std::string& root() const { return options_.root; }
  int nodes() const { return options_.nodes; }
  /// Where the node listens for its peers.
  std::string PeerSocket(int node) const { return NodeDir(node) + "/p.sock"; }
  std::string AgentSocket(int node) const { return RunDir(node) + "/agent.sock"; }
  std::string RunDir(int node) const;
  std::string NodeDir(int node) const;
  std::vector<std::string> DataDirs(int node) const;
  std::string AgentLog(int node) const { return NodeDir(node) + "/agent.log"; }
  std::string CoordinatorLog() const { return root() + "/coordinator.log"; }

  struct CliResult {
    int exit_code = 0;
    std::string out;
    std::string errors;
  };
  /// Runs the operator CLI against this cluster.
  Result<CliResult> Cli(std::vector<std::string> arguments,
                        std::chrono::milliseconds timeout = std::chrono::minutes(1)) const;

 private:
  ClusterOptions options_;
  Process coordinator_;
  std::vector<Process> agents_;
};

/// mkdtemp under $TMPDIR or /tmp.
Result<std::string> MakeTempDir(const std::string& prefix);
/// The bytes of the file; none when it cannot be read.
std::string ReadAll(const std::string& path);

}  // namespace holdfast::local
