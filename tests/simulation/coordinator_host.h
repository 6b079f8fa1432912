#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "coordinator/server/applier.h"
#include "coordinator/store/memory_store.h"
#include "tests/simulation/network.h"

namespace holdfast::simulation {

struct World;

/// An Attach stream between an agent and one life of the coordinator. Both ends use this object;
/// each change reaches the other end as a message.
struct Stream {
  std::string node;
  coord::AttachId attach = 0;
  std::deque<std::pair<Epoch, coord::Directive>> arrived;  // at the agent
  bool ended = false;                                      // for the agent
  bool closed = false;                                     // for the coordinator
  Clock::TimePoint last_arrival{};
  Mailbox* agent = nullptr;  // valid while the agent lives
  std::shared_ptr<bool> agent_dead;
};

/// One process of the coordinator: the real applier with the real state, supervisor and catalog.
struct CoordinatorLife {
  SimProcess process{"coordinator"};
  bool dead = false;
  std::unique_ptr<Mailbox> mailbox;
  std::unique_ptr<coord::Applier> applier;
  std::vector<std::shared_ptr<Stream>> streams;
};

/// The coordinator's machine: its store, and the process while one runs.
class CoordinatorHost {
 public:
  explicit CoordinatorHost(World& world) : world_(world) {}

  /// Starts a process, which opens the store. Blocks.
  void Start();
  /// Ends the process at once. Its writes that have not reached the store are lost.
  void Crash();
  /// Ends the process in order.
  void Stop();
  bool up() const { return life_ != nullptr; }
  const std::shared_ptr<CoordinatorLife>& life() const { return life_; }

  // Only while the coordinator is down.
  void LoseStore();
  void KeepCopy() { copy_ = data_; }
  /// Replaces the store by the kept copy, as an operator does: with a new life.
  void RestoreCopy();

  /// One write of this number fails with an unknown outcome; 0: none.
  uint64_t write_fails_one_in = 0;
  coord::StateOptions options;

 private:
  void Bury(std::shared_ptr<CoordinatorLife> life);
  Result<std::unique_ptr<coord::MetaStore>> OpenStore(std::weak_ptr<CoordinatorLife> life);

  World& world_;
  coord::MemoryStoreData data_;
  coord::MemoryStoreData copy_;
  std::shared_ptr<CoordinatorLife> life_;
};

}  // namespace holdfast::simulation
