#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "testing/cluster/process.h"

namespace holdfast::local {

struct ClusterOptions {
  std::string root;  // a short path: sockets are beneath it
  int nodes = 4;
  uint64_t arena_bytes = 256ULL << 20;
  int disk_every = 1;
  int keep_last = 3;
  int data_dirs = 1;                        // per node
  std::map<int, std::string> data_dir_of;   // node → other folder, e.g. a small mount
  std::vector<std::string> agent_settings;  // further "key=value"
  std::map<int, std::vector<std::string>> agent_settings_of;  // node → its further settings
  /// Node → the command that starts its agent, e.g. {"ip", "netns", "exec", "n3"}.
  std::map<int, std::vector<std::string>> agent_command_of;
  std::vector<std::string> coordinator_settings;
  std::string endpoint;  // of the coordinator; empty: a Unix socket
  int coordinators = 1;  // more than one share the store of their settings
  /// Relays, which agents try before the coordinators: node i begins with relay i modulo their
  /// number.
  int relays = 0;
  std::vector<std::string> coordinator_command;  // the command that starts the coordinator
  std::vector<std::string> cli_command;          // the command that starts the CLI
  std::vector<std::string> cli_options;          // --tls-ca …
  /// Folders of programs of another version. Empty, or a node that is missing: BinaryDir().
  std::map<int, std::string> agent_programs_of;  // by node, with the keeper and the shim
  std::string coordinator_programs;
  std::string cli_programs;
  /// Also start a fault injector for each node and one for the coordinator.
  bool injectors = false;
  std::vector<std::string> injector_settings;  // further "key=value" of all injectors
  std::map<int, std::vector<std::string>> injector_settings_of;  // node → its further settings
  std::vector<std::string> coordinator_injector_settings;
};

/// A complete Holdfast cluster on this machine, as real processes over Unix sockets: one
/// coordinator, and one agent with its keeper per node. A server for which the options have no
/// command is started with $HOLDFAST_SERVER_COMMAND (words separated by spaces), if that is set.
/// The destructor ends all processes; the files stay. Thread-compatible.
class Cluster {
 public:
  explicit Cluster(ClusterOptions options);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// Starts the coordinator and all agents, and waits until all answer.
  Status Start();
  /// `crash` arms a crash point in that process ("volume.mid_write:3").
  Status StartCoordinator(const std::string& crash = "", int index = 0);
  Status StartRelay(int index);
  /// Starts all relays and waits until they have the coordinator.
  Status StartRelays();
  Status StartAgent(int node, const std::string& crash = "");
  Status AwaitAgent(int node);
  /// Starts the fault injector of a node, where its agent runs, or that of the coordinator.
  Status StartInjector(int node);
  Status StartCoordinatorInjector();
  /// Sets the commands, the programs and the agents' settings, from `options`, for the next starts.
  void Reconfigure(const ClusterOptions& options);

  Process& coordinator(int index = 0) { return coordinators_[static_cast<size_t>(index)]; }
  Process& relay(int index) { return relays_[static_cast<size_t>(index)]; }
  Process& agent(int node) { return agents_[node]; }
  Process& injector(int node) { return injectors_[node]; }
  /// Returns the pid of a node's keeper; 0 if none runs.
  pid_t KeeperPid(int node) const;
  void KillKeeper(int node);
  /// Simulates the loss of a machine: kills agent and keeper, and removes sockets and disks.
  void DestroyNode(int node);
  /// Kills injectors, coordinator, agents and keepers with SIGKILL at once. The memory is lost.
  void KillEverything();

  /// Returns the address of the coordinator, or the list of all.
  std::string endpoint() const;
  /// Returns the address of one coordinator.
  std::string EndpointOf(int coordinator) const;
  /// Returns the address of one relay.
  std::string RelayEndpoint(int relay) const;
  std::string RelayLog(int relay) const {
    return root() + "/relay" + std::to_string(relay) + ".log";
  }
  /// Returns what the agent of a node has as `coordinator`.
  std::string EndpointsOfAgent(int node) const;
  const std::string& root() const { return options_.root; }
  int nodes() const { return options_.nodes; }
  /// Returns the socket on which the node listens for its peers.
  std::string PeerSocket(int node) const { return NodeDir(node) + "/p.sock"; }
  std::string AgentSocket(int node) const { return RunDir(node) + "/agent.sock"; }
  std::string RunDir(int node) const;
  std::string NodeDir(int node) const;
  std::vector<std::string> DataDirs(int node) const;
  std::string AgentLog(int node) const { return NodeDir(node) + "/agent.log"; }
  std::string CoordinatorLog(int index = 0) const { return CoordinatorDir(index) + ".log"; }

  struct CliResult {
    int exit_code = 0;
    std::string out;
    std::string errors;
  };
  /// Runs the operator CLI against this cluster, or against the --endpoint of the arguments.
  Result<CliResult> Cli(std::vector<std::string> arguments,
                        std::chrono::milliseconds timeout = std::chrono::minutes(1)) const;

 private:
  /// Starts an injector with its socket, log and folder in `folder`.
  Status StartInjectorIn(const std::string& folder, std::vector<std::string> command,
                         const std::vector<std::string>& settings, Process* process);
  std::string CoordinatorDir(int index) const;

  ClusterOptions options_;
  std::vector<Process> coordinators_;
  std::vector<Process> relays_;
  std::vector<Process> agents_;
  std::vector<Process> injectors_;  // by node
  Process coordinator_injector_;
};

/// Makes a temporary directory under $TMPDIR or /tmp.
Result<std::string> MakeTempDir(const std::string& prefix);
/// Returns the bytes of the file; empty when it cannot be read.
std::string ReadAll(const std::string& path);

}  // namespace holdfast::local
