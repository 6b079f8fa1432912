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
#include "agent/pipeline/version_reader.h"
#include "agent/pipeline/watched_ranks.h"
#include "storage/base/clock.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

struct NodeOptions {
  std::string node;
  uint64_t disk_every_steps = 0;  // 0: follow the coordinator's target
  uint64_t peer_every_steps = 0;  // 0: as often as the peers keep up
  int64_t peer_build_timeout_ms = 30'000;
  std::string trainers_file;  // see trainer_record.h; empty: none
  int64_t hello_timeout_ms = 5'000;
  ScrubOptions scrub;
  SeenLife seen_life = {};           // the life that the agent followed before its start
  int64_t prepare_wait_ms = 30'000;  // how long a PrepareShard waits for its rank to connect
  /// For tests: called before memory is reserved.
  std::function<void(const SegmentOwner&)> before_reserve = {};
};

/// One rank's slots, with the threads that seal them and write them to disk.
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

/// The node's complete pipeline: serves trainers, sends reports and executes directives. One loop
/// thread owns sessions and job states and never blocks. Each rank has a sealer and a persister
/// thread. A few workers run reservations, restores and checks; retention has a separate thread.
/// Memory outside the arena is bounded, because the numbers of sessions, packets, tasks and parked
/// restores are bounded.
class Node final : public DirectiveHandler, private RankEvents {
 public:
  /// The arguments outlive the node.
  Node(NodeOptions options, Arena& arena, Volume& volume, CoordinatorLink& link,
       ShardFetcher& fetcher, PeerTransport& peers, Clock& clock);
  ~Node() override;

  /// Reports the shards on disk, and starts to verify the sealed slots that were found in memory,
  /// newest first. Each slot is reported once it has passed.
  void Adopt();
  /// Waits until the checks of Adopt() are done. Returns false after the timeout.
  bool AwaitAdopted(int64_t timeout_ms);
  /// Serves trainers that connect to `listener`, until Stop().
  Status Serve(UniqueFd listener);
  /// Writes the versions that are committed at memory, and not on disk yet, to disk. Returns false
  /// after the timeout. Threads: any, until Stop().
  bool Flush(int64_t timeout_ms);
  /// Ends all sessions and threads. Later directives are ignored. Idempotent.
  void Stop();

  // DirectiveHandler. Threads: any.
  void OnJobState(JobState state) override;
  void OnPrepareShard(PrepareShard prepare) override;
  void OnRemoveVersion(RemoveVersion remove) override;
  void OnLife(const SeenLife& seen) override;

  /// The source from which peers read. Threads: any, until Stop().
  PeerSource& peer_source() { return peer_source_; }

  /// The trainers of this node, for fault detection. Threads: any, until Stop().
  WatchedRanks& watched() { return watched_; }
  /// Probes of this node's peers. Threads: any.
  PeerReach& reach() { return reach_; }

  /// Returns whether any connected trainer of this node reports running collectives. Threads: any.
  bool InCollective();

  // The data service. Threads: any.
  Result<std::unique_ptr<ShardReader>> OpenInMemory(const ShardKey& key);
  Status VerifyInMemory(const ShardKey& key, bool deep, ShardSeal* seal);

  struct RankStatus {
    SegmentOwner owner;
    uint64_t slot_bytes = 0;
    bool in_collective = false;
    uint64_t collectives = 0;  // begun, as the rank's trainers report
    std::vector<RankSlots::SlotStatus> slots;
  };
  std::vector<RankStatus> Snapshot();

  /// Handles a replica of this node that does not match its seal: reports it and stops offering it
  /// as an intact replica. While a parity group protects the version, the replica stays, and its
  /// good chunks remain readable, until it is repaired. Otherwise its slot is freed or its files
  /// are quarantined. Returns false when the damage was known already. Threads: any.
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
    Incarnation incarnation;  // the one it joined
  };
  /// A PrepareShard whose rank has not connected yet.
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

  // ---- loop (node.cc); functions that take a Session also run on the loop thread ----
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
  /// Returns the rank's memory that has the version; this may be a retained segment. If none has
  /// it, returns the rank's current memory, or nullptr.
  std::shared_ptr<RankPipeline> FindHolder(const ShardKey& key);
  /// Returns the ranks of one job, or of all; parity and retained segments included.
  std::vector<std::shared_ptr<RankPipeline>> Ranks(const std::string* job = nullptr);
  std::shared_ptr<RankPipeline> MakeRank(Segment& segment);
  std::vector<ShardKey> KeptInMemory();
  Result<uint64_t> CheckChunkInMemory(const ShardKey& key, uint64_t chunk);
  void VerifyAdopted(const std::shared_ptr<RankPipeline>& rank, VersionId version);
  RestoreTools MakeRestoreTools(ShardFetcher& fetcher);
  /// Returns the seal of a replica on this node. Fails when no parity group protects the
  /// version or the seal cannot be read.
  Result<ShardSeal> SealOfProtected(const ShardKey& key, Tier tier);
  /// Takes a useless replica out of service and reports it as removed.
  void OnLost(const ShardKey& key, Tier tier, const Status& how);
  /// Reports a replica that was verified or repaired.
  void OnVerified(const ShardIdentity& identity, Tier tier, const ShardSeal& seal);

  // ---- trainers (node_sessions.cc) ----
  void HandlePacket(Session& session, std::span<const std::byte> packet);
  void HandleHello(Session& session, const HelloMessage& hello);
  JoinRequest JoinRequestOf(const Session& session) const;
  Status CheckHello(Session& session, const HelloMessage& hello);
  Status ClaimRank(Session& session);
  void OnJoined(uint64_t session_id, const Result<Incarnation>& incarnation);
  void SendReservationProgress(Session& session);
  void HandleWantTier(Session& session, const EndSaveMessage& message);
  void ReserveOnWorker(uint64_t session_id, const SegmentOwner& owner, uint32_t slots,
                       uint64_t slot_bytes, uint32_t world);
  Result<Segment*> FromArena(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes);
  /// `world` is that of the job's current start; 0: not known.
  Result<Segment*> Reserve(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes,
                           uint32_t world);
  Result<Segment*> ReserveInTurn(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes,
                                 uint32_t world);
  /// Frees all slots of a rank's memory and takes the rank off the node. FailedPrecondition when a
  /// slot must stay.
  Status Retire(const std::shared_ptr<RankPipeline>& rank, bool on_disk_too);
  /// Keeps the rank's memory as a retained segment, because its shards are still needed. The rank
  /// gets new memory.
  Status RetainSegment(const std::shared_ptr<RankPipeline>& rank);
  void TakeBack(const std::shared_ptr<RankPipeline>& rank);
  void ReleaseRetained();
  std::vector<std::shared_ptr<RankPipeline>> IdleRanks(const std::string& job, uint32_t world);
  void OnReserved(uint64_t session_id, const Result<Segment*>& segment);
  void RememberTrainer(Session& session, UniqueFd pid_fd);
  void LoadTrainers();
  void StoreTrainers();
  void Refuse(Session& session, const Status& status);
  void HandleBeginSave(Session& session, const BeginSaveMessage& message);
  /// Returns false when the save has to wait for a slot.
  bool TryBeginSave(Session& session, const WaitingSave& save, bool last_chance);
  void HandleEndSave(Session& session, const EndSaveMessage& message);
  void HandleFindRestore(Session& session, const FindRestoreMessage& message);
  void RequestRestore(Session& session);
  void OnRestoreDecided(uint64_t session_id, const Result<RestoreDecision>& decision);
  bool TryAnswerRestore(Session& session, const WaitingRestore& restore);
  void HandleEndRestore(Session& session, const EndSaveMessage& message);

  // ---- version readers (node_readers.cc) ----
  void CheckOwnShard(Session& session, const RestoreDecision& decision);
  void TryStartReader(Session& session, Clock::TimePoint now);
  void StartReader(Session& session, uint64_t ticket, const RestoreDecision& decision);
  Result<std::shared_ptr<OpenReader>> MakeReader(const std::string& job, VersionId version,
                                                 Incarnation incarnation, uint64_t* listing_bytes);
  Result<std::shared_ptr<VersionReader>> ShareReader(const std::string& job, VersionId version,
                                                     Incarnation incarnation);
  Result<VersionPlaces> FindPlaces(const std::string& job, VersionId version);
  void OnReaderMade(uint64_t session_id, uint64_t ticket, const RestoreDecision& decision,
                    const Result<std::shared_ptr<OpenReader>>& reader, uint64_t listing_bytes);
  void CloseReader(Session& session, uint32_t number);
  void HandleReadRange(Session& session, const ReadRangeMessage& message);

  // ---- the life of jobs (node_life.cc) ----
  void ReportRanks();
  void RememberGoodbye(const Session& session);
  void AdvanceReleases();
  void ReleaseMemory(const std::string& job);
  void StopParity(const std::string& job);
  void DropJob(const std::string& job);
  void ForgetJob(const JobState& state);
  void RemoveFromDisk(const std::string& job, VersionId version, const std::vector<ShardKey>& keys);

  // ---- replies to trainers (node_sessions.cc) ----
  void RetryWaitingRequests(Session& session);
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
  /// `rank` may be nullptr only for a restore to disk.
  Status Prepare(const PrepareShard& prepare, RankPipeline* rank);
  void ApplyRemove(const RemoveVersion& remove);
  void SetWarning(const std::string& key, const std::string& text);
  /// Sets the operator's warning while the disks have quarantined files; clears it otherwise.
  void WarnOfQuarantine();

  const NodeOptions options_;
  Arena& arena_;
  Volume& volume_;
  CoordinatorLink& link_;
  Clock& clock_;
  PeerTransport& peers_;
  NodePeerSource peer_source_;
  RestoreTools restore_tools_;

  // A rank's pipeline exists until the node stops or the rank's memory is reassigned.
  Mutex reserve_mutex_;  // held while memory changes its owner; taken before ranks_mutex_
  CondVar reserved_;
  std::set<RankKey> reserving_ HOLDFAST_GUARDED_BY(reserve_mutex_);  // one reservation each
  Mutex ranks_mutex_;
  std::map<RankKey, std::shared_ptr<RankPipeline>> ranks_ HOLDFAST_GUARDED_BY(ranks_mutex_);
  /// Retained segments: memory of ranks that have larger memory by now, kept until newer versions
  /// are safe.
  std::vector<std::shared_ptr<RankPipeline>> retained_ HOLDFAST_GUARDED_BY(ranks_mutex_);
  std::atomic<bool> releasing_{false};

  WatchedRanks watched_;
  PeerReach reach_;

  Mutex adopt_mutex_;
  CondVar adopted_;
  uint32_t adopting_ HOLDFAST_GUARDED_BY(adopt_mutex_) = 0;

  Mutex damaged_mutex_;
  std::set<ShardKey> damaged_on_disk_ HOLDFAST_GUARDED_BY(damaged_mutex_);  // have bad chunks

  Mutex warnings_mutex_;
  std::map<std::string, std::string> warnings_ HOLDFAST_GUARDED_BY(warnings_mutex_);

  // Loop thread only.
  UniqueFd listener_;
  std::map<uint64_t, std::unique_ptr<Session>> sessions_;
  uint64_t next_session_ = 1;
  Clock::TimePoint next_quarantine_check_{};
  std::map<RankKey, Trainer> trainers_;
  /// A process that sent a Goodbye. If it connects again, it joins as the same start of the job.
  struct Departed {
    pid_t pid = 0;
    uint64_t start_ticks = 0;
    Incarnation incarnation;
  };
  std::map<RankKey, Departed> departed_;
  std::map<std::string, JobState> jobs_;
  std::map<std::string, std::unique_ptr<ParityKeeper>> parity_keepers_;
  std::map<RankKey, Incarnation> goodbyes_;  // ranks whose latest trainer sent a Goodbye
  /// Jobs whose memory is to be freed, and the time of the next attempt.
  std::map<std::string, Clock::TimePoint> releasing_jobs_;
  /// Jobs without a parity group, and the time at which their joins are repeated.
  struct Unprotected {
    Incarnation incarnation;
    Clock::TimePoint next;
    Clock::Duration pause{};
  };
  std::map<std::string, Unprotected> unprotected_;
  std::map<std::pair<std::string, std::string>, Incarnation> joined_;  // by job and run ID
  /// Shards that are being brought to a tier, with the requests that wait for each.
  std::map<std::pair<ShardKey, Tier>, std::vector<uint64_t>> preparing_;
  std::vector<ParkedPrepare> parked_;
  std::atomic<uint32_t> session_count_{0};
  std::atomic<uint64_t> life_;       // of the coordinator's store; 0: not known yet
  std::atomic<uint64_t> unlabeled_;  // see SeenLife

  Mutex posted_mutex_;
  std::vector<std::function<void()>> posted_ HOLDFAST_GUARDED_BY(posted_mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(posted_mutex_) = false;
  UniqueFd wake_fd_;

  /// A version reader that the trainers of this node share, or that is being opened.
  struct SharedReader {
    Mutex mutex;  // held while the reader is opened
    std::weak_ptr<VersionReader> reader;
  };
  Mutex readers_mutex_;
  std::map<std::tuple<std::string, VersionId, Incarnation>, std::shared_ptr<SharedReader>> readers_
      HOLDFAST_GUARDED_BY(readers_mutex_);

  Executor workers_;
  Executor repairs_;  // restores to disk
  Executor retention_;
  Executor reader_threads_;
  std::unique_ptr<Scrubber> scrubber_;
  std::thread loop_;
};

}  // namespace holdfast::agent
