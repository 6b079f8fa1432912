#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/state/state.h"
#include "storage/base/random.h"
#include "tests/coordinator/state/oracle.h"

namespace holdfast::coord {

/// One job on a few simulated nodes with a real State: agents that save, skip, make parity, write
/// to disk, lose their memory, come back, repeat and reorder what they say; a coordinator that is
/// restarted from its records, also after a write of unknown outcome. Everything follows from the
/// seed.
class Simulation {
 public:
  explicit Simulation(uint64_t seed);

  /// One random happening.
  void Happen();
  /// Everything comes back and is delivered; a new run restores, saves and commits. False: its
  /// version is not at every tier it could reach.
  bool Heal();
  const Oracle& oracle() const { return oracle_; }
  std::vector<std::string> TakeTrace() { return std::move(trace_); }
  struct Counts {
    uint64_t commits = 0;
    uint64_t peer_commits = 0;
    uint64_t restores = 0;  // ranks that got an answer
    uint64_t decoded = 0;   // ranks among them whose shard came from parity
    uint64_t repaired = 0;  // shards brought back to where they were missing
    uint64_t max_lost = 0;  // most segments that a stripe lacked when one was decoded
  };
  const Counts& counts() const { return counts_; }

 private:
  using Shard = std::pair<VersionId, uint32_t>;
  struct Agent {
    std::string name;
    bool old = false;  // knows nothing of parity
    uint64_t start = 1;
    AttachId attach = 0;  // of its open stream; 0: none
    std::set<Shard> memory;
    std::set<Shard> disk;
    std::set<Shard> prepared;
    std::set<std::pair<Shard, Tier>> damaged;  // listed, but a read shows it
    Incarnation incarnation;
    JobWord word;
    VersionId building;  // the version whose parity it makes, or made last
    std::deque<NodeReported> outbox;
    std::deque<Directive> inbox;
    NodeReported last;  // repeated now and then
  };
  struct Run {
    std::string id;
    uint32_t world = 0;
    bool views = false;  // its ranks open views in place of getting their own shards back
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
  void Prepare(Agent& agent, const PrepareOrder& order);
  Status Decode(const PrepareOrder& order);
  Status ReadCopy(const PrepareOrder& order);
  bool HasRanks(const PeerMember& member, VersionId version) const;
  void MakeParity(Agent& agent);
  void SaveTogether(Run& run);
  void Settle(int rounds);
  void Calm();
  void Disaster();
  bool SurvivesLosses();
  void StartAndRestore();
  void StartRun();
  void Join(Run& run, uint32_t rank);
  void AskRestore(Run& run, uint32_t rank);
  void Save(Run& run, uint32_t rank, bool skip);
  void WriteToDisk(Agent& agent);
  void SayPin();
  Holding MakeHolding(const Shard& shard, Tier tier) const;
  std::vector<Holding> Inventory(const Agent& agent) const;
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
  std::map<std::string, AttachId> sessions_;  // as the coordinator has them
  std::deque<Run> runs_;
  std::map<RequestId, Call> calls_;
  std::map<uint64_t, PrepareOrder> orders_;  // by request, until answered
  uint64_t next_id_ = 1;
  bool faults_ = true;
  Counts counts_;
  std::vector<std::string> trace_;
};

}  // namespace holdfast::coord
