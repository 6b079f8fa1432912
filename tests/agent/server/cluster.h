#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/api/agent.grpc.pb.h"
#include "base/status.h"
#include "coordinator/api/coordinator.grpc.pb.h"
#include "storage/format/seal.h"

// Starts the real binaries for a test: a coordinator and agents, each in its own directory below a
// temporary one, on unix sockets.

namespace holdfast::agent {

/// One started process; the destructor kills it.
class Program {
 public:
  Program() = default;
  Program(Program&& other) noexcept;
  Program& operator=(Program&& other) noexcept;
  ~Program();

  /// `env` adds variables as NAME=VALUE; the output goes to the file `log`.
  static Result<Program> Start(const std::vector<std::string>& args,
                               const std::vector<std::string>& env, const std::string& log);
  bool running();
  pid_t pid() const { return pid_; }
  void Signal(int signal);
  /// Waits for the process and returns its wait status; -1 after `timeout_ms`.
  int Wait(int timeout_ms);
  void Kill();

 private:
  pid_t pid_ = 0;
  int status_ = -1;
};

class TestCluster {
 public:
  TestCluster();
  ~TestCluster();

  Status StartCoordinator();
  Status StartAgent(int node, const std::string& crash = "",
                    const std::vector<std::string>& settings = {});
  /// Returns the arguments that StartAgent() uses.
  std::vector<std::string> AgentArgs(int node, const std::vector<std::string>& settings) const;
  void KillKeeper(int node);

  Program& agent(int node) { return agents_[node]; }
  Program& coordinator() { return coordinator_; }
  const std::string& root() const { return root_; }
  std::string NodeDir(int node) const { return root_ + "/n" + std::to_string(node); }
  std::string Socket(int node) const { return NodeDir(node) + "/run/agent.sock"; }
  std::string AgentLog(int node) const;
  std::unique_ptr<Agent::Stub> Data(int node) const;
  std::unique_ptr<coordinator::Coordinator::Stub> Control() const;

 private:
  std::string root_;
  Program coordinator_;
  std::map<int, Program> agents_;
};

struct ShardPart {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
/// Reads a shard, or a part of one, from the data service and checks each chunk.
Result<std::vector<std::byte>> ReadShardFrom(Agent::Stub& stub, const ShardKey& key, Tier tier,
                                             ShardSeal* seal,
                                             std::optional<ShardPart> part = std::nullopt);

std::string ReadText(const std::string& path);

}  // namespace holdfast::agent
