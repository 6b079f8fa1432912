#pragma once

#include <memory>
#include <set>
#include <string>

#include "agent/pipeline/node.h"
#include "testing/disk/sim_directory.h"
#include "tests/simulation/network.h"
#include "tests/simulation/sim_arena.h"
#include "tests/simulation/sim_link.h"

namespace holdfast::simulation {

struct World;
class Trainer;

/// One process of an agent: the real node over a real volume on a simulated disk.
struct AgentLife {
  SimProcess process;
  std::shared_ptr<bool> dead = std::make_shared<bool>(false);
  std::string socket;
  std::unique_ptr<SimClock> clock;
  std::unique_ptr<Mailbox> mailbox;
  std::unique_ptr<Volume> volume;
  std::unique_ptr<agent::SimArena> arena;
  std::unique_ptr<agent::PeerTransport> peers;
  std::unique_ptr<SimLink> link;
  std::unique_ptr<agent::Node> node;
  bool serves = false;
  int serving = 0;                                       // threads of other nodes in this one
  std::set<std::shared_ptr<agent::PeerReader>> readers;  // that serve other nodes
};

/// A machine with an agent: its disk and its keeper outlive the agent.
class NodeHost {
 public:
  NodeHost(World& world, std::string name, const SimDiskOptions& disk);
  ~NodeHost();

  /// Starts the agent. Blocks. Tries again after a pause if the disk fails.
  void Start();
  /// The agent's process ends at once, and nothing else.
  void CrashAgent();
  /// The machine loses power: memory, unsynced data and trainers are gone.
  void LosePower();
  /// The machine is replaced by a new one with the same name.
  void LoseDisk();
  /// Ends the agent in order.
  void StopAgent();

  const std::string& name() const { return name_; }
  bool up() const { return life_ != nullptr && life_->serves; }
  const std::shared_ptr<AgentLife>& life() const { return life_; }
  SimDisk& disk() { return *disk_; }
  std::set<Trainer*>& trainers() { return trainers_; }

 private:
  Status Open(const std::shared_ptr<AgentLife>& life);
  void End(bool silent);
  void ReplaceDisk();
  void Bury(const std::shared_ptr<AgentLife>& life);

  World& world_;
  const std::string name_;
  SimDiskOptions disk_options_;
  std::unique_ptr<SimDisk> disk_;
  std::vector<std::unique_ptr<SimDisk>> old_disks_;  // dead agents may still use them
  agent::KeptMemory kept_;
  uint64_t starts_ = 0;
  uint64_t agent_id_ = 0;
  std::shared_ptr<AgentLife> life_;
  std::set<Trainer*> trainers_;
};

}  // namespace holdfast::simulation
