#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "coordinator/state/state.h"
#include "tests/coordinator/state/oracle.h"

namespace holdfast::coord {

inline VersionId V(uint64_t incarnation, uint64_t step) {
  return {Incarnation{incarnation}, Step{step}};
}

inline StateOptions GroupsOf(uint32_t group_nodes, uint32_t parity) {
  StateOptions options;
  options.peers.groups = {group_nodes, parity};
  return options;
}

/// One coordinator with job "gpt", driven event by event. Keeps the stored records, and the effects
/// of the last event. The agents are older ones without parity, unless `peers` is set.
class Harness {
 public:
  explicit Harness(StateOptions options = {}) : options_(std::move(options)) {
    // Unless a test sets the options, no job ends and no version is flushed.
    if (options_.flush_after == StateOptions().flush_after) {
      options_.flush_after = options_.end_grace = std::chrono::hours(24);
    }
    Restart();
  }

  /// Restarts the coordinator with other options.
  void Restart(const StateOptions& options) {
    const Epoch epoch = options_.epoch;
    options_ = options;
    options_.epoch = epoch;
    Restart();
  }
  void Restart() {
    ++options_.epoch.value;
    auto state = State::Load(options_, stored.ToRecords(), at_);
    ASSERT_TRUE(state.has_value()) << state.error().ToString();
    state_ = std::make_unique<State>(*std::move(state));
    attached_.clear();
  }

  const std::vector<Effect>& Apply(const Event& event) {
    effects = state_->Apply(event, at_);
    for (Effect& effect : state_->FinishBatch()) effects.push_back(std::move(effect));
    for (const Effect& effect : effects) stored.Apply(effect);
    return effects;
  }
  void Pass(std::chrono::milliseconds time) {
    at_.now += time;
    Apply(Tick{});
  }

  /// Continues after a suspension of the coordinator, in which State's time did not advance.
  void Resume() { Apply(Tick{.resumed = true}); }

  void Attach(const std::string& node, std::vector<StoredReplica> replicas = {}, uint64_t start = 1,
              uint64_t agent_id = 0) {
    attached_[node] = start;
    NodeAttached event;
    event.attach = attach_ids_[node] = ++next_;
    event.node = node;
    event.agent_start = start;
    event.agent_id = agent_id;
    event.data_address = "unix:/" + node;
    event.replicas = std::move(replicas);
    event.peer_address = "unix:/" + node + ".peer";
    event.no_parity = !peers;
    event.ranks = ranks[node];
    event.disk_every = disk_every;
    event.labels = labels[node];
    event.health.disk_free_percent = FreePercent(node);
    Apply(event);
  }
  void Lose(const std::string& node) { Apply(NodeLost{node}); }
  NodeReported NewReport(const std::string& node) {
    NodeReported report;
    report.request = ++next_;
    report.node = node;
    report.agent_start = attached_[node];
    report.epoch = options_.epoch;
    report.health.disk_free_percent = FreePercent(node);
    report.ranks = ranks[node];
    return report;
  }
  uint32_t FreePercent(const std::string& node) {
    return free_percent.try_emplace(node, 50).first->second;
  }
  void Hold(const std::string& node, const std::vector<StoredReplica>& replicas) {
    NodeReported report = NewReport(node);
    report.replicas = replicas;
    Apply(report);
  }
  void ReportFailed(const std::string& node, VersionId version, uint32_t rank, Tier tier) {
    NodeReported report = NewReport(node);
    report.failed.push_back({"gpt", version, Rank{rank}, tier, "test"});
    Apply(report);
  }
  void ReportRemoved(const std::string& node, VersionId version, uint32_t rank, Tier tier) {
    NodeReported report = NewReport(node);
    report.removed.push_back({"gpt", version, Rank{rank}, tier});
    Apply(report);
  }
  void ReportFailedParity(const std::string& node, VersionId version, uint32_t number, Tier tier) {
    ReportFailed(node, version, ParityRank(number).value, tier);
  }
  void Answer(const std::string& node, std::optional<uint64_t> request, Status outcome) {
    NodeReported report = NewReport(node);
    report.prepared.push_back({request.value(), std::move(outcome)});
    Apply(report);
  }
  Reply Join(const std::string& node, const std::string& run, uint32_t rank, uint32_t world,
             uint32_t uid = 7) {
    RankJoined event{{"gpt", run, Rank{rank}, world, uid, peers ? SlotBytes(rank) : 0, {}}};
    event.request = ++next_;
    event.node = node;
    event.agent_start = attached_[node];
    event.may_have_joined = true;
    Apply(event);
    return ReplyTo(next_).value_or(Reply{});
  }
  RequestId RequestRestore(const std::string& node, uint64_t incarnation, uint32_t rank,
                           std::optional<VersionId> wanted = {}, bool reshard = false) {
    RestoreRequested event{{"gpt", Incarnation{incarnation}, Rank{rank}, wanted, 0, reshard}};
    event.request = ++next_;
    event.node = node;
    Apply(event);
    return next_;
  }
  RequestId RequestReshard(const std::string& node, uint64_t incarnation, uint32_t rank,
                           std::optional<VersionId> wanted = {}) {
    return RequestRestore(node, incarnation, rank, wanted, /*reshard=*/true);
  }
  Reply Pin(std::optional<VersionId> version, bool pinned) {
    Apply(PinSet{++next_, "gpt", version, pinned});
    return ReplyTo(next_).value_or(Reply{});
  }

  static uint64_t SlotBytes(uint32_t rank) { return 4096 * (rank + uint64_t{1}); }

  // ---- of the last event ----
  std::optional<Reply> ReplyTo(std::optional<RequestId> request) const {
    for (const Effect& effect : effects) {
      const auto* reply = std::get_if<Reply>(&effect);
      if (reply != nullptr && reply->request == request) return *reply;
    }
    return std::nullopt;
  }
  std::vector<VersionId> Commits(Tier tier) const {
    std::vector<VersionId> versions;
    for (const Effect& effect : effects) {
      const auto* put = std::get_if<PutVersion>(&effect);
      if (put != nullptr && put->committed_tier_bit == TierBit(tier)) {
        versions.push_back(put->record.version);
      }
    }
    return versions;
  }
  template <typename D>
  std::vector<D> Sent() const {
    std::vector<D> directives;
    for (const Effect& effect : effects) {
      const auto* send = std::get_if<Send>(&effect);
      if (send == nullptr) continue;
      if (const auto* directive = std::get_if<D>(&send->directive))
        directives.push_back(*directive);
    }
    return directives;
  }
  /// The last job state that was sent to `node`.
  std::optional<JobState> JobStateTo(const std::string& node) const {
    std::optional<JobState> last;
    for (const Effect& effect : effects) {
      const auto* send = std::get_if<Send>(&effect);
      if (send == nullptr || send->attach != attach_ids_.at(node)) continue;
      if (const auto* state = std::get_if<JobState>(&send->directive)) last = *state;
    }
    return last;
  }
  std::vector<Status> Findings() const {
    std::vector<Status> findings;
    for (const Effect& effect : effects) {
      if (const auto* finding = std::get_if<Finding>(&effect)) findings.push_back(finding->what);
    }
    return findings;
  }
  std::vector<CloseAttach> Closed() const {
    std::vector<CloseAttach> closed;
    for (const Effect& effect : effects) {
      if (const auto* close = std::get_if<CloseAttach>(&effect)) closed.push_back(*close);
    }
    return closed;
  }

  // ---- of all events ----
  std::vector<VersionId> Stored() const {
    std::vector<VersionId> versions;
    for (const auto& [key, record] : stored.versions) versions.push_back(key.second);
    return versions;
  }
  JobStatus Job() const { return state_->Jobs("gpt").value()[0]; }
  State& state() { return *state_; }
  AttachId AttachOf(const std::string& node) const { return attach_ids_.at(node); }
  /// Sends a heartbeat of `node`, with its trainers. Returns the outcome.
  Status Report(const std::string& node) {
    const NodeReported report = NewReport(node);
    Apply(report);
    return ReplyTo(report.request)->outcome;
  }

  std::map<std::string, uint32_t> free_percent;  // disk space by node; 50 unless set
  /// Makes `node` report these trainers from now on.
  void ReportTrainers(const std::string& node, std::vector<LocalRank> trainers) {
    ranks[node] = std::move(trainers);
    Apply(NewReport(node));
  }
  Reply Forget() {
    Apply(JobForgotten{++next_, "gpt"});
    return ReplyTo(next_).value_or(Reply{});
  }
  Reply Retain(uint64_t keep_last, uint64_t keep_every) {
    Apply(RetentionSet{++next_, "gpt", keep_last, keep_every});
    return ReplyTo(next_).value_or(Reply{});
  }

  bool peers = false;
  std::map<std::string, Labels> labels;                 // by node
  std::map<std::string, std::vector<LocalRank>> ranks;  // trainers, by node
  uint64_t disk_every = 0;
  StoredRecords stored;
  std::vector<Effect> effects;

 private:
  StateOptions options_;
  Instant at_{Clock::TimePoint(std::chrono::hours(1)), 1000};
  std::unique_ptr<State> state_;
  std::map<std::string, uint64_t> attached_;
  std::map<std::string, AttachId> attach_ids_;
  uint64_t next_ = 100;
};

inline StoredReplica H(VersionId version, uint32_t rank, Tier tier, uint32_t world = 2) {
  return {{"gpt", version, Rank{rank}, world},
          tier,
          version.incarnation.value * 1000 + version.step.value * 10 + rank,
          4096};
}

/// Returns a replica of the parity of member `number` of a plan.
inline StoredReplica P(VersionId version, uint32_t number, Tier tier, uint32_t world) {
  StoredReplica report = H(version, number, tier, world);
  report.identity.rank = ParityRank(number);
  report.digest += 500'000;
  return report;
}

}  // namespace holdfast::coord
