#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "coordinator/state/state.h"
#include "tests/coordinator/state/oracle.h"

namespace holdfast::coord {

/// One job on a few simulated nodes with a real State. The agents save, skip steps, build parity,
/// write to disk, lose their memory, return, and repeat and reorder their reports. The coordinator
/// is restarted from its records, also after a write of unknown outcome. The seed determines the
/// whole sequence.
class Simulation {
 public:
  explicit Simulation(uint64_t seed);

  /// Applies one random event.
  void RandomEvent();
  /// Attaches all nodes and delivers all messages. Then a new run restores, saves and commits.
  /// Returns false if its version is not at every tier that it can reach.
  bool Heal();
  const Oracle& oracle() const { return oracle_; }
  std::vector<std::string> TakeTrace() { return std::move(trace_); }
  struct Counts {
    uint64_t commits = 0;
    uint64_t peer_commits = 0;
    uint64_t restores = 0;  // ranks that got a reply
    uint64_t decoded = 0;   // of them, ranks whose shard was decoded
    uint64_t repaired = 0;  // shards that were repaired where they were missing
    uint64_t max_lost = 0;  // most erasures of a stripe that was decoded
  };
  const Counts& counts() const { return counts_; }

 private:
  using Shard = std::pair<VersionId, uint32_t>;
  struct Agent {
    std::string name;
    bool old = false;  // an older agent, without parity
    uint64_t start = 1;
    AttachId attach = 0;  // of its open stream; 0: none
    std::set<Shard> memory;
    std::set<Shard> disk;
    std::set<Shard> prepared;
    std::set<std::pair<Shard, Tier>> damaged;  // listed; a read finds the damage
    Incarnation incarnation;
    JobState job_state;
    VersionId building;  // the version whose parity it builds, or built last
    std::deque<NodeReported> outbox;
    std::deque<Directive> inbox;
    NodeReported last;  // repeated now and then
  };
  struct Run {
    std::string id;
    uint32_t world = 0;
    bool reshards = false;  // its ranks reshard in place of restoring their own shards
    Incarnation incarnation;
    std::vector<size_t> nodes;  // by rank
    std::vector<bool> joined;
    std::vector<uint64_t> next_step;
    std::vector<bool> answered;
  };
  struct Call {
    enum class Kind { kJoin, kRestore } kind = Kind::kJoin;
    size_t run = 0;
    uint32_t rank = 0;
    Incarnation incarnation;
  };

  bool Chance(uint64_t percent) { return random_.Below(100) < percent; }
  void Apply(const Event& event);
  void Observe(const Event& event);
  void Act(const std::vector<Effect>& effects);
  void OnReply(const Reply& reply);
  void Reload();
  void Attach(Agent& agent);
  void Detach(Agent& agent);
  void LoseMemory(Agent& agent);
  void Deliver(Agent& agent);
  void Read(Agent& agent);
  void Obey(Agent& agent, const Directive& directive);
  void Prepare(Agent& agent, const PrepareShard& order);
  Status Decode(const PrepareShard& order);
  Status ReadCopy(const PrepareShard& order);
  bool HasRanks(const PlanMember& member, VersionId version) const;
  void MakeParity(Agent& agent);
  void SaveTogether(Run& run);
  void RunRounds(int rounds);
  void TrainUndisturbed();
  void LoseMachines();
  bool SurvivesLosses();
  void StartAndRestore();
  void StartRun();
  void Join(Run& run, uint32_t rank);
  void RequestRestore(Run& run, uint32_t rank);
  void Save(Run& run, uint32_t rank, bool skip);
  void WriteToDisk(Agent& agent);
  void PinRandomVersion();
  StoredReplica MakeReplica(const Shard& shard, Tier tier) const;
  std::vector<StoredReplica> Inventory(const Agent& agent) const;
  NodeReported NewReport(const Agent& agent) const;
  void Note(std::string line) { trace_.push_back(std::move(line)); }

  Random random_;
  const std::string job_ = "job";
  Instant at_{Clock::TimePoint(std::chrono::hours(1)), 0};
  StateOptions options_;
  std::unique_ptr<State> state_;
  StoredRecords records_;
  Oracle oracle_{"job"};
  std::vector<Agent> agents_;
  std::map<std::string, AttachId> sessions_;  // the coordinator's open streams, by node
  std::deque<Run> runs_;
  std::map<RequestId, Call> calls_;
  std::map<uint64_t, PrepareShard> orders_;  // by request, until the reply
  uint64_t next_id_ = 1;
  bool faults_ = true;
  Counts counts_;
  std::vector<std::string> trace_;
};

}  // namespace holdfast::coord
