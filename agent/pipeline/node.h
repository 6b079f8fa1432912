#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "agent/pipeline/departure.h"
#include "agent/pipeline/node_setup.h"
#include "agent/pipeline/node_shards.h"
#include "agent/pipeline/node_trainers.h"
#include "agent/pipeline/scrubber.h"
#include "base/thread.h"

namespace holdfast::agent {

/// The node's complete pipeline: serves trainers, sends reports and executes directives. NodeShards
/// and NodeTrainers make the parts and connect them; each part has its own header. A part reports
/// to the parts that are made after it through interfaces (RankEvents, SessionControl).
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
    shards_.commits.Load();
    shards_.adoption.Start();
  }
  /// Waits until the checks of Adopt() are done. Returns false after the timeout.
  bool AwaitAdopted(int64_t timeout_ms) { return shards_.adoption.Await(timeout_ms); }
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
  std::string DiskWarning() { return shards_.warnings.Text(kDiskWarning); }
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
  RankRegistry& ranks() { return shards_.ranks; }
  const LocalShards& shards() const { return shards_.local; }
  DamageTracker& damage() { return shards_.damage; }
  PeerSource& peer_source() { return shards_.peer_source; }
  WatchedRanks& watched() { return shards_.watched; }
  PeerReach& reach() { return shards_.reach; }

  Scrubber::Counts scrub_counts() const;
  uint32_t session_count() const { return trainers_.server.session_count(); }

 private:
  void RunLoop();
  void Tick();

  const NodeSetup setup_;
  NodeShards shards_{setup_};
  NodeTrainers trainers_{setup_, shards_};
  std::unique_ptr<Scrubber> scrubber_;
  Clock::TimePoint next_quarantine_check_{};  // loop thread only
  Thread loop_thread_;
};

}  // namespace holdfast::agent
