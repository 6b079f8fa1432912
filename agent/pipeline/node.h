#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "agent/api/messages.h"
#include "agent/api/socket.h"
#include "agent/arena/arena.h"
#include "agent/pipeline/coordinator_link.h"
#include "agent/pipeline/executor.h"
#include "agent/pipeline/parity_keeper.h"
#include "agent/pipeline/peer_reach.h"
#include "agent/pipeline/peer_source.h"
#include "agent/pipeline/persister.h"
#include "agent/pipeline/rank_events.h"
#include "agent/pipeline/rank_slots.h"
#include "agent/pipeline/restore.h"
#include "agent/pipeline/scrubber.h"
#include "agent/pipeline/sealer.h"
#include "agent/pipeline/session.h"
#include "agent/pipeline/version_view.h"
#include "agent/pipeline/watched_ranks.h"
#include "storage/base/clock.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

struct NodeOptions {
  std::string node;
  uint64_t disk_every_steps = 0;  // 0: follow the coordinator's target
  uint64_t peer_every_steps = 0;  // 0: as fast as the peers follow
  int64_t peer_build_timeout_ms = 30'000;
  std::string trainers_file;  // see trainer_record.h; empty: none
  int64_t hello_timeout_ms = 5'000;
  ScrubOptions scrub;
  SeenLife seen_life = {};           // what the agent followed before
  int64_t prepare_wait_ms = 30'000;  // for the rank that is to be restored to connect
  /// Called before memory is reserved, which takes its time; for tests.
  std::function<void(const SegmentOwner&)> before_reserve = {};
};

/// One rank's slots with the threads that follow them.
struct RankPipeline {
  RankPipeline(Segment& segment_in, uint64_t disk_every_steps, uint64_t peer_every_steps,
               Volume& volume, RankEvents& events, Clock& clock)
      : segment(segment_in),
        slots(segment_in, disk_every_steps, peer_every_steps),
        sealer(slots, events, clock),
        persister(slots, volume, events) {}
  ~RankPipeline() { slots.Stop(); }

  Segment& segment;
  std::atomic<bool> connected{false};  // a trainer has the memory mapped
  RankSlots slots;
  Sealer sealer;
  Persister persister;
};

/// The node's whole pipeline: trainers in, facts out, directives carried out. One loop thread owns
/// sessions and job states and never blocks; each rank has a sealer and a persister thread; joins'
/// reservations, restores and checks run on a few workers, retention on one of its own. Memory
/// beside the arena is bounded: counts of sessions, packets, tasks and parked restores all are.
class Node final : public DirectiveHandler, private RankEvents {
 public:
  /// The arguments outlive it.
  Node(NodeOptions options, Arena& arena, Volume& volume, CoordinatorLink& link,
       ShardFetcher& fetcher, PeerTransport& peers, Clock& clock);
  ~Node() override;

  /// Reports what the disks hold, and starts to check the sealed slots that were found in memory,
  /// newest first; each is reported once it passed.
  void Adopt();
  /// Waits until Adopt()'s checks are done. False: not yet.
  bool AwaitAdopted(int64_t timeout_ms);
  /// Serves trainers that connect to `listener`, until Stop().
  Status Serve(UniqueFd listener);
  /// Writes to disk what is committed at memory and not there yet. False: not within the time.
  /// Threads: any, until Stop().
  bool Flush(int64_t timeout_ms);
  /// Ends everything: no trainer, directive or rank thread is served afterwards. Idempotent.
  void Stop();

  // DirectiveHandler. Threads: any.
  void OnJobState(JobState state) override;
  void OnPrepareShard(PrepareShard prepare) override;
  void OnRemoveVersion(RemoveVersion remove) override;
  void OnLife(const SeenLife& seen) override;

  /// What peers may read here. Threads: any, until Stop().
  PeerSource& peer_source() { return peer_source_; }

  /// The trainers of this node, to be looked at from outside. Threads: any, until Stop().
  WatchedRanks& watched() { return watched_; }
  /// Which of their peers it reaches. Threads: any.
  PeerReach& reach() { return reach_; }

  /// Whether a trainer that is connected here says that its own collectives run. Threads: any.
  bool InCollective();

  // The data service. Threads: any.
  Result<std::unique_ptr<ShardReader>> OpenInMemory(const ShardKey& key);
  Status VerifyInMemory(const ShardKey& key, bool deep, ShardSeal* seal);

  struct RankStatus {
    SegmentOwner owner;
    uint64_t slot_bytes = 0;
    bool in_collective = false;
    uint64_t collectives = 0;  // begun, by the word of the rank's trainers
    std::vector<RankSlots::SlotStatus> slots;
  };
  std::vector<RankStatus> Snapshot();

  /// A copy here is not what it was sealed as: it is reported, and offered to nobody as a whole
  /// from now on. Where its group can make use of its good chunks it stays for them, until it is
  /// mended; else it is moved out of the way. False: known already. Threads: any.
  bool OnDamaged(const ShardKey& key, Tier tier, const Status& how);
  Scrubber::Counts scrub_counts() const;
  uint32_t session_count() const { return session_count_.load(std::memory_order_relaxed); }

 private:
  using RankKey = std::pair<std::string, Rank>;
  /// The process that last had a rank's memory mapped.
  struct Trainer {
    pid_t pid = 0;
    UniqueFd pid_fd;
    uint64_t start_ticks = 0;
    Incarnation incarnation;  // that it joined
  };
  struct ParkedPrepare {
    PrepareShard prepare;
    Clock::TimePoint deadline;
  };

  // RankEvents
  void OnSealed(const ShardSeal& seal, std::vector<ReplicaSample> samples) override;
  void OnSaveFailed(const ShardKey& key, const Status& why) override;
  void OnStored(const ShardSeal& seal) override;
  void OnNotStored(const ShardKey& key, const Status& why) override;
  void OnSlotsChanged(const std::string& job, Rank rank) override;

  // ---- loop (node.cc); everything named …Loop or taking a Session runs on the loop thread ----
  void RunLoop();
  void Post(std::function<void()> task);
  void RunPosted();
  void AcceptTrainers();
  void DropSilent(uid_t uid);
  void ReadPackets(Session& session);
  void TickLoop();
  void EndSession(Session& session, std::string_view why);
  void SweepClosed();
  Session* FindSession(const std::string& job, Rank rank);
  Session* FindSession(uint64_t id);
  std::shared_ptr<RankPipeline> FindRank(const std::string& job, Rank rank);
  /// The rank's memory that has the version, if any of it has; also what was set aside.
  std::shared_ptr<RankPipeline> FindHolder(const ShardKey& key);
  /// Of one job, or all; parity included.
  std::vector<std::shared_ptr<RankPipeline>> Ranks(const std::string* job = nullptr);
  std::shared_ptr<RankPipeline> MakeRank(Segment& segment);
  std::vector<ShardKey> KeptInMemory();
  Result<uint64_t> CheckChunkInMemory(const ShardKey& key, uint64_t chunk);
  void VerifyAdopted(const std::shared_ptr<RankPipeline>& rank, VersionId version);
  RestoreTools MakeRestoreTools(ShardFetcher& fetcher);
  /// The seal of a copy here that is protected by a parity group, if it can be read in part.
  Result<ShardSeal> SealOfProtected(const ShardKey& key, Tier tier);
  void OnLost(const ShardKey& key, Tier tier, const Status& how);
  void OnWhole(const ShardIdentity& identity, Tier tier, const ShardSeal& seal);

  // ---- trainers (node_sessions.cc) ----
  void HandlePacket(Session& session, std::span<const std::byte> packet);
  void HandleHello(Session& session, const HelloMessage& hello);
  JoinQuestion QuestionOf(const Session& session) const;
  Status CheckHello(Session& session, const HelloMessage& hello);
  Status ClaimRank(Session& session);
  void OnJoined(uint64_t session_id, const Result<Incarnation>& incarnation);
  void TellProgress(Session& session);
  void HandleWantTier(Session& session, const EndSaveMessage& message);
  void ReserveOnWorker(uint64_t session_id, const SegmentOwner& owner, uint32_t slots,
                       uint64_t slot_bytes, uint32_t world);
  Result<Segment*> FromArena(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes);
  /// `world` of the job's current start; 0: not known.
  Result<Segment*> Reserve(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes,
                           uint32_t world);
  Result<Segment*> ReserveInTurn(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes,
                                 uint32_t world);
  /// Takes a rank's memory away from its threads, emptied. FailedPrecondition when it may not.
  Status Retire(const std::shared_ptr<RankPipeline>& rank, bool on_disk_too);
  /// The rank gets new memory; this stays for what it holds.
  Status SetAside(const std::shared_ptr<RankPipeline>& rank);
  void TakeBack(const std::shared_ptr<RankPipeline>& rank);
  void ReleaseSetAside();
  std::vector<std::shared_ptr<RankPipeline>> IdleRanks(const std::string& job, uint32_t world);
  void OnReserved(uint64_t session_id, const Result<Segment*>& segment);
  void RememberTrainer(Session& session, UniqueFd pid_fd);
  void LoadTrainers();
  void StoreTrainers();
  void Refuse(Session& session, const Status& status);
  void HandleBeginSave(Session& session, const BeginSaveMessage& message);
  /// False: it has to wait.
  bool TryBeginSave(Session& session, const WaitingSave& save, bool last_chance);
  void HandleEndSave(Session& session, const EndSaveMessage& message);
  void HandleFindRestore(Session& session, const FindRestoreMessage& message);
  void AskRestore(Session& session);
  void OnRestoreDecided(uint64_t session_id, const Result<RestoreDecision>& decision);
  bool TryAnswerRestore(Session& session, const WaitingRestore& restore);
  void HandleEndRestore(Session& session, const EndSaveMessage& message);

  // ---- views (node_views.cc) ----
  void CheckOwnShard(Session& session, const RestoreDecision& decision);
  void TryStartView(Session& session, Clock::TimePoint now);
  void StartView(Session& session, uint64_t ticket, const RestoreDecision& decision);
  Result<std::shared_ptr<OpenView>> MakeView(const std::string& job, VersionId version,
                                             Incarnation incarnation, uint64_t* listing_bytes);
  Result<std::shared_ptr<VersionView>> ShareView(const std::string& job, VersionId version,
                                                 Incarnation incarnation);
  Result<VersionPlaces> FindPlaces(const std::string& job, VersionId version);
  void OnViewMade(uint64_t session_id, uint64_t ticket, const RestoreDecision& decision,
                  const Result<std::shared_ptr<OpenView>>& view, uint64_t listing_bytes);
  void CloseView(Session& session, uint32_t number);
  void HandleReadView(Session& session, const ReadViewMessage& message);

  // ---- the life of jobs (node_life.cc) ----
  void TellRanks();
  void RememberGoodbye(const Session& session);
  void AdvanceReleases();
  void ReleaseMemory(const std::string& job);
  void StopParity(const std::string& job);
  void DropJob(const std::string& job);
  void ForgetJob(const JobState& word);
  void RemoveFromDisk(const std::string& job, VersionId version, const std::vector<ShardKey>& keys);

  // ---- trainers again ----
  void RetryWaiting(Session& session);
  void Reply(Session& session, uint64_t ticket, const Status& status);
  void Notify(Session& session, NoticeKind kind, VersionId version, Tier tier,
              const Status& status = Status::Ok());
  void NotifyCommitted(Session& session, const JobState* before, const JobState& now);
  void ReportNotSaved(const ShardKey& key, const std::string& why);

  // ---- directives (node_directives.cc) ----
  void ApplyJobState(JobState state);
  void ApplyLife(const SeenLife& seen);
  void UpdateParity(const JobState& job);
  void RepeatJoins(const JobState& job);
  Result<std::shared_ptr<RankPipeline>> ReserveParity(const std::string& job, Rank parity,
                                                      uint64_t slot_bytes);
  void ApplyPrepare(PrepareShard prepare);
  void StartPrepare(PrepareShard prepare, std::shared_ptr<RankPipeline> rank);
  void FinishPrepare(const ShardKey& key, Tier into, const Status& status);
  void StartParityPrepare(PrepareShard prepare);
  /// `rank`: nullptr only for what goes to disk.
  Status Prepare(const PrepareShard& prepare, RankPipeline* rank);
  void ApplyRemove(const RemoveVersion& remove);
  void SetWarning(const std::string& key, const std::string& text);
  /// As long as there are quarantined files on disk, an operator should see it.
  void WarnOfQuarantine();

  const NodeOptions options_;
  Arena& arena_;
  Volume& volume_;
  CoordinatorLink& link_;
  Clock& clock_;
  PeerTransport& peers_;
  NodePeerSource peer_source_;
  RestoreTools restore_tools_;

  // Ranks live until the node stops, or until their memory is given to something else.
  Mutex reserve_mutex_;  // which memory is whose changes under it; taken before ranks_mutex_
  CondVar reserved_;
  std::set<RankKey> reserving_ HOLDFAST_GUARDED_BY(reserve_mutex_);  // one at a time for each
  Mutex ranks_mutex_;
  std::map<RankKey, std::shared_ptr<RankPipeline>> ranks_ HOLDFAST_GUARDED_BY(ranks_mutex_);
  /// Memory of ranks that have larger memory by now, until newer versions are safe.
  std::vector<std::shared_ptr<RankPipeline>> set_aside_ HOLDFAST_GUARDED_BY(ranks_mutex_);
  std::atomic<bool> releasing_{false};

  WatchedRanks watched_;
  PeerReach reach_;

  Mutex adopt_mutex_;
  CondVar adopted_;
  uint32_t adopting_ HOLDFAST_GUARDED_BY(adopt_mutex_) = 0;

  Mutex damaged_mutex_;
  std::set<ShardKey> damaged_on_disk_ HOLDFAST_GUARDED_BY(damaged_mutex_);  // in places

  Mutex warnings_mutex_;
  std::map<std::string, std::string> warnings_ HOLDFAST_GUARDED_BY(warnings_mutex_);

  // Loop thread only.
  UniqueFd listener_;
  std::map<uint64_t, std::unique_ptr<Session>> sessions_;
  uint64_t next_session_ = 1;
  Clock::TimePoint next_quarantine_check_{};
  std::map<RankKey, Trainer> trainers_;
  /// A process that said goodbye may come back: it is no new start of the job.
  struct Parted {
    pid_t pid = 0;
    uint64_t start_ticks = 0;
    Incarnation incarnation;
  };
  std::map<RankKey, Parted> parted_;
  std::map<std::string, JobState> jobs_;
  std::map<std::string, std::unique_ptr<ParityKeeper>> parity_keepers_;
  std::map<RankKey, Incarnation> goodbyes_;  // ranks whose trainer said goodbye last
  /// Jobs whose memory is given back, and when that is tried next.
  std::map<std::string, Clock::TimePoint> releasing_jobs_;
  /// Jobs that the coordinator names no group for, and when its memory is refreshed next.
  struct Unprotected {
    Incarnation incarnation;
    Clock::TimePoint next;
    Clock::Duration pause{};
  };
  std::map<std::string, Unprotected> unprotected_;
  std::map<std::pair<std::string, std::string>, Incarnation> joined_;  // by job and run id
  /// Shards on their way into a tier, and who waits for each.
  std::map<std::pair<ShardKey, Tier>, std::vector<uint64_t>> preparing_;
  std::vector<ParkedPrepare> parked_;
  std::atomic<uint32_t> session_count_{0};
  std::atomic<uint64_t> life_;       // of the coordinator's store; 0: not known yet
  std::atomic<uint64_t> unlabeled_;  // see SeenLife

  Mutex posted_mutex_;
  std::vector<std::function<void()>> posted_ HOLDFAST_GUARDED_BY(posted_mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(posted_mutex_) = false;
  UniqueFd wake_fd_;

  /// Views that some trainer of this node has open, or is about to.
  struct SharedView {
    Mutex mutex;  // held while it is opened
    std::weak_ptr<VersionView> view;
  };
  Mutex views_mutex_;
  std::map<std::tuple<std::string, VersionId, Incarnation>, std::shared_ptr<SharedView>> views_
      HOLDFAST_GUARDED_BY(views_mutex_);

  Executor workers_;
  Executor repairs_;  // onto the disks
  Executor retention_;
  Executor view_readers_;
  std::unique_ptr<Scrubber> scrubber_;
  std::thread loop_;
};

}  // namespace holdfast::agent
