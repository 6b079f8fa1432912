#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/pipeline/adoption.h"
#include "agent/pipeline/departure.h"
#include "agent/pipeline/job_service.h"
#include "agent/pipeline/scrubber.h"
#include "agent/pipeline/shared_tiers.h"
#include "agent/pipeline/stopped_ranks.h"
#include "agent/pipeline/trainer_server.h"
#include "base/thread.h"

namespace holdfast::agent {

struct NodeOptions {
  std::string node;
  uint64_t disk_every_steps = 0;  // 0: as often as the disks keep up
  uint64_t peer_every_steps = 0;  // 0: as often as the peers keep up
  int64_t peer_build_timeout_ms = 30'000;
  std::string trainers_file;  // see trainer_record.h; empty: none
  int64_t hello_timeout_ms = 5'000;
  SessionLimits sessions = {};
  ScrubOptions scrub;
  PerTier<TierStore*> shared_tiers = {};  // nullptr: the node does not reach the tier
  uint32_t copies_at_once = 1;            // shards that are copied to shared tiers at the same time
  uint32_t checksum_threads = 0;          // that help the sealers; see checksum_pool.h
  SeenLife seen_life = {};                // the life that the agent followed before its start
  int64_t prepare_wait_ms = 30'000;       // how long a PrepareShard waits for its rank to connect
  ProcessTable& processes = ProcessTable::Kernel();
  /// For tests: called before memory is reserved.
  std::function<void(const SegmentOwner&)> before_reserve = {};
};

/// The node's complete pipeline: serves trainers, sends reports and executes directives. Makes the
/// parts and connects them; each part has its own header. A part uses only parts that are declared
/// before it. It reports to later parts through interfaces (RankEvents, SessionControl).
///
/// One loop thread owns sessions and job states and never blocks. Each rank has a sealer and a
/// persister thread. A few workers run reservations, restores and checks; removals from disk have a
/// separate thread. Memory outside the arena is bounded, because the numbers of sessions, packets,
/// tasks and parked restores are bounded.
class Node final : public DirectiveHandler {
 public:
  /// The arguments outlive the node.
  Node(const NodeOptions& options, Arena& arena, Volume& volume, CoordinatorLink& link,
       PeerTransport& peers, Clock& clock);
  ~Node() override;

  /// Reports the shards on disk, and starts to verify the sealed slots that were found in memory,
  /// newest first. Each slot is reported once its check has passed.
  void Adopt() {
    commits_.Load();
    adoption_.Start();
  }
  /// Waits until the checks of Adopt() are done. Returns false after the timeout.
  bool AwaitAdopted(int64_t timeout_ms) { return adoption_.Await(timeout_ms); }
  /// Serves trainers that connect to `listener`, until Stop().
  Status Serve(UniqueFd listener);
  /// Writes to disk the versions that are committed at memory and are not on disk yet. Returns
  /// false after the timeout. Threads: any, until Stop().
  bool Flush(int64_t timeout_ms);
  /// Brings the newest version of each job to disk before the agent ends; see departure.h.
  /// `interrupted` returns true when the agent must end at once. Threads: any, until Stop().
  std::map<std::string, DepartedJob> Depart(int64_t grace_ms,
                                            const std::function<bool()>& interrupted);
  /// Why the last write to disk failed; empty when it succeeded.
  std::string DiskWarning() { return warnings_.Text(kDiskWarning); }
  /// Ends the work on shared tiers. Returns false when a file system has not answered after the
  /// timeout: Stop() would wait for it.
  bool StopSharedTiers(int64_t timeout_ms);
  /// Ends all sessions and threads. Later directives are ignored. Idempotent.
  void Stop();

  // DirectiveHandler. Threads: any.
  void OnJobState(JobState state) override;
  void OnPrepareShard(PrepareShard prepare) override;
  void OnRemoveVersion(RemoveVersion remove) override;
  void OnLife(const SeenLife& seen) override;

  // The parts that the agent's services use. Threads: any, until Stop().
  RankRegistry& ranks() { return ranks_; }
  const LocalShards& shards() const { return shards_; }
  DamageTracker& damage() { return damage_; }
  PeerSource& peer_source() { return peer_source_; }
  WatchedRanks& watched() { return watched_; }
  PeerReach& reach() { return reach_; }

  Scrubber::Counts scrub_counts() const;
  uint32_t session_count() const { return trainers_.session_count(); }

 private:
  void RunLoop();
  void Tick();

  const NodeOptions options_;
  Volume& volume_;
  CoordinatorLink& link_;
  Clock& clock_;
  Clock::TimePoint next_quarantine_check_{};  // loop thread only

  LoopQueue loop_;
  ChecksumPool checksums_;
  RankRegistry ranks_;
  RankMemory memory_;
  Warnings warnings_;
  StoppedRanks stopped_ranks_;  // loop thread only
  DamageTracker damage_;
  LocalShards shards_;
  NodePeerSource peer_source_;
  WatchedRanks watched_;
  PeerReach reach_;
  Executor workers_;     // reservations, restores to memory, checks
  Executor background_;  // removals from disk, ends of parity keepers
  const RestoreTools restore_tools_;
  Adoption adoption_;
  DiskRetention disks_;
  GroupReporter groups_;
  KnownCommits commits_;
  CommittedIndexes indexes_;
  SharedTiers shared_;
  ParityService parity_;

  SessionTable sessions_;
  JobTable jobs_;
  TrainerProcesses processes_;
  SaveService saves_;
  ShardPreparer preparer_;
  ReaderService readers_;
  RestoreService restores_;
  JoinService joins_;
  TrainerServer trainers_;
  JobRelease release_;
  JobService job_service_;

  std::unique_ptr<Scrubber> scrubber_;
  Thread loop_thread_;
};

}  // namespace holdfast::agent
