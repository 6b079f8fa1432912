#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/api/messages.h"
#include "agent/api/socket.h"
#include "agent/arena/arena.h"
#include "agent/pipeline/node.h"
#include "agent/pipeline/rank_status.h"
#include "base/mutex.h"
#include "storage/volume/volume.h"
#include "testing/disk/sim_directory.h"

// The environment of a node for the pipeline tests: a trainer that sends and receives packets, a
// coordinator in the same process, and a node over a real arena (keeper included) and a real or
// simulated volume.

namespace holdfast::agent {

std::string MakeTempDir();
void RemoveTree(const std::string& path);
/// Ends the keeper of a run directory, which frees the arena's memory.
void KillKeeperIn(const std::string& run_dir);
bool Eventually(const std::function<bool()>& condition, int timeout_ms = 20'000);

/// Returns the image of one test shard: a header and `tensor_bytes` bytes that depend on its rank
/// and version.
std::vector<std::byte> MakeImage(const ShardIdentity& identity, uint64_t tensor_bytes,
                                 const std::string& samples = "");

/// Decides as the coordinator does, but without durability: a version is committed at a tier once
/// every rank of its world has a replica there. Thread-safe.
class FakeCoordinator : public CoordinatorLink {
 public:
  void SetHandler(DirectiveHandler* handler);
  void Report(StoredReplica report) override;
  void Report(FailedReplica failed) override;
  void Report(RemovedReplica removed) override;
  void Report(Prepared prepared) override;
  void Report(TierWanted wanted) override;
  void SetWarnings(std::vector<std::string> warnings) override;
  void SetRanks(std::vector<LocalRank> ranks) override;
  void Join(const JoinRequest& request, std::function<void(Result<Incarnation>)> done) override;
  void DecideRestore(const RestoreRequest& request,
                     std::function<void(Result<RestoreDecision>)> done) override;
  /// Returns the reported replicas, with the nodes' names as addresses.
  void FindPlaces(const std::string& job, VersionId version,
                  std::function<void(Result<VersionPlaces>)> done) override;
  /// Returns how often the places of a version were requested.
  uint64_t place_requests();

  /// While not reachable, calls fail with Unavailable and directives are not sent.
  void SetReachable(bool reachable);
  void SetDecision(std::optional<RestoreDecision> decision);
  void SetAborted(VersionId version);
  void SetDiskTarget(Step step);
  /// Turns commits on or off.
  void SetCommits(bool on);
  void Broadcast(const std::string& job);
  uint64_t Prepare(PrepareShard prepare);
  /// Applies `change` to a job's state and sends the state.
  void UpdateJob(const std::string& job, const std::function<void(JobState&)>& change);

  /// Drops all replicas of a tier, as an attach with an empty inventory does.
  void Forget(Tier tier);
  JobState state(const std::string& job);
  bool Holds(const ShardKey& key, Tier tier);
  std::optional<StoredReplica> report(const ShardKey& key, Tier tier);
  std::optional<FailedReplica> failed(const ShardKey& key, Tier tier);
  bool WasRemoved(const ShardKey& key, Tier tier);
  std::optional<Status> prepared(uint64_t request);
  std::vector<std::string> warnings();
  std::vector<JoinRequest> joins();
  std::vector<LocalRank> ranks();
  std::vector<TierWanted> wanted();

 private:
  using Place = std::pair<ShardKey, Tier>;
  void TryCommit(const StoredReplica& report) HOLDFAST_REQUIRES(mutex_);
  void Send(const JobState& state) HOLDFAST_REQUIRES(mutex_);

  Mutex mutex_;
  DirectiveHandler* handler_ HOLDFAST_GUARDED_BY(mutex_) = nullptr;
  bool reachable_ HOLDFAST_GUARDED_BY(mutex_) = true;
  uint64_t place_requests_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  bool commits_ HOLDFAST_GUARDED_BY(mutex_) = true;
  std::map<std::string, JobState> jobs_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<std::string, std::string> run_ids_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<Place, StoredReplica> replicas_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<Place, FailedReplica> failed_ HOLDFAST_GUARDED_BY(mutex_);
  std::set<Place> removed_ HOLDFAST_GUARDED_BY(mutex_);
  std::map<uint64_t, Status> prepared_ HOLDFAST_GUARDED_BY(mutex_);
  uint64_t next_request_ HOLDFAST_GUARDED_BY(mutex_) = 1;
  std::optional<RestoreDecision> decision_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<std::string> warnings_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<JoinRequest> joins_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<LocalRank> ranks_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<TierWanted> wanted_ HOLDFAST_GUARDED_BY(mutex_);
};

/// Another node that serves one shard: `image`, sealed by `seal`. While it has none, no peer can be
/// reached. It does not check what it sends.
class FakePeer : public PeerTransport {
 public:
  Result<std::unique_ptr<PeerStream>> Open(const std::string& address, const PeerRequest& request,
                                           Clock::TimePoint deadline) override;
  /// Serves `image` with a seal that matches it.
  void Serve(const ShardIdentity& identity, std::vector<std::byte> image);
  std::vector<PeerRequest> Requests();
  ShardSeal seal;
  std::vector<std::byte> image;

 private:
  Mutex mutex_;
  std::vector<PeerRequest> requests_ HOLDFAST_GUARDED_BY(mutex_);
};

/// A trainer's end of the socket.
class TestTrainer {
 public:
  struct Options {
    std::string job = "job";
    std::string run_id = "run-1";
    uint32_t rank = 0;
    uint32_t world = 1;
    uint32_t slots = 3;
    uint64_t slot_bytes = 4 << 20;
    uint32_t protocol = kProtocolVersion;
  };
  /// Connects, sends a Hello and waits for the Welcome.
  static Result<TestTrainer> Connect(const std::string& socket, const Options& options);
  /// Connects without a Hello.
  static Result<TestTrainer> ConnectSilently(const std::string& socket);

  TestTrainer(TestTrainer&&) = default;
  TestTrainer& operator=(TestTrainer&&) = default;
  ~TestTrainer();

  const WelcomeMessage& welcome() const { return welcome_; }
  Incarnation incarnation() const { return Incarnation{welcome_.incarnation}; }
  VersionId Version(uint64_t step) const { return {incarnation(), Step{step}}; }
  ShardIdentity Identity(uint64_t step) const;
  ShardKey Key(uint64_t step) const { return Identity(step).key(); }

  Result<ReplyMessage> BeginSave(uint64_t step, uint64_t image_bytes, int wait_ms = 0,
                                 bool skipping = false);
  std::span<std::byte> slot(uint32_t index);
  SlotProgress& progress(uint32_t index);
  void Copy(uint32_t slot, std::span<const std::byte> image, uint64_t up_to);
  Status EndSave(uint32_t slot, uint64_t step, MessageType type = MessageType::kEndSave);
  /// Runs a complete save; returns its slot.
  Result<uint32_t> Save(uint64_t step, uint64_t tensor_bytes, int wait_ms = 10'000);
  Result<ReplyMessage> FindRestore(VersionId wanted = {}, uint64_t timeout_ms = 10'000);
  /// `memory` gets the memory of the version reader if the reply is OK.
  Result<ReplyMessage> OpenReader(UniqueFd* memory, MessageType type = MessageType::kOpenReader);
  Result<ReplyMessage> ReadIndex(uint32_t reader, UniqueFd* index);
  Result<ReplyMessage> ReadRange(const ReadRangeMessage& message);

  /// Waits for a notice. Other notices are kept for later calls.
  Result<NoticeMessage> AwaitNotice(NoticeKind kind, uint64_t step, Tier tier,
                                    int timeout_ms = 20'000);
  Result<ReplyMessage> AwaitReply(uint64_t ticket, int timeout_ms = 20'000);
  Status SendRaw(std::span<const std::byte> packet) { return SendPacket(socket_.get(), packet); }
  template <typename Message>
  Status SendRaw(const Message& message) {
    return SendRaw(std::as_bytes(std::span(&message, 1)));
  }
  /// Returns true once the agent has closed the connection; drops the packets before that.
  bool AwaitClosed(int timeout_ms = 10'000);
  void HangUp() { socket_.Reset(); }

 private:
  TestTrainer() = default;
  Result<std::vector<std::byte>> Receive(int timeout_ms);

  Options options_;
  UniqueFd socket_;
  UniqueFd memory_fd_;
  std::byte* memory_ = nullptr;
  WelcomeMessage welcome_;
  uint64_t next_ticket_ = 1;
  std::vector<NoticeMessage> notices_;
  std::map<uint64_t, ReplyMessage> replies_;
  UniqueFd last_fd_;  // the last one received after the Welcome
};

struct TestNodeOptions {
  uint64_t arena_bytes = 256 << 20;
  uint64_t disk_every_steps = 1;
  bool simulated_disk = false;
  int64_t prepare_wait_ms = 30'000;
  ScrubOptions scrub = {};
  PerTier<TierStore*> shared_tiers = {};
  std::function<void(const SegmentOwner&)> before_reserve = {};
};

/// A node that can be stopped and started again with the same keeper and disks.
class TestNode {
 public:
  explicit TestNode(const TestNodeOptions& options = {});
  ~TestNode();

  Status Start();
  void Stop();
  /// Ends the keeper, which frees the arena's memory. Call it while the node is stopped.
  void KillKeeper();
  std::string socket() const { return dir_ + "/agent.sock"; }
  /// Returns the slots of the first rank.
  std::vector<SlotStatus> Slots() const { return StatusOf(node->ranks()).at(0).slots; }
  std::string data_dir() const { return dir_ + "/data"; }
  /// Returns the paths of all files under data_dir().
  std::vector<std::string> DataFiles() const;

  FakeCoordinator coordinator;
  FakePeer peers;
  SimDisk disk{{.clock = &Clock::Real()}};
  std::unique_ptr<Volume> volume;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Node> node;

 private:
  TestNodeOptions options_;
  std::string dir_;
};

}  // namespace holdfast::agent
