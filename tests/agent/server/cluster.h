#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/api/agent.grpc.pb.h"
#include "coordinator/api/coordinator.grpc.pb.h"
#include "storage/base/status.h"
#include "storage/format/seal.h"

// Real binaries around a test: a coordinator and agents, each in a directory of its own below one
// temporary one, on unix sockets.

namespace holdfast::agent {

/// One started binary; killed when destroyed.
class Program {
 public:
  Program() = default;
  Program(Program&& other) noexcept;
  Program& operator=(Program&& other) noexcept;
  ~Program();

  /// `env` is added as NAME=VALUE; output goes to `log`.
  static Result<Program> Start(const std::vector<std::string>& args,
                               const std::vector<std::string>& env, const std::string& log);
  bool running();
  pid_t pid() const { return pid_; }
  void Signal(int signal);
  /// The wait status; waits at most `timeout_ms`, then -1.
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
  /// The arguments StartAgent uses.
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

/// Reads a shard with the data service, each chunk checked.
Result<std::vector<std::byte>> ReadShardFrom(Agent::Stub& stub, const ShardKey& key, Tier tier,
                                             ShardSeal* seal);

std::string ReadText(const std::string& path);

}  // namespace holdfast::agent
