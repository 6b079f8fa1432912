#include "coordinator/server/watcher.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.h"
#include "coordinator/api/telemetry_convert.h"
#include "coordinator/state/cluster.h"

namespace holdfast::coord {
namespace {
namespace pb = ::holdfast::coordinator;

constexpr std::chrono::milliseconds kEvaluateInterval(250);
constexpr auto kHangPublishInterval = std::chrono::seconds(1);
constexpr auto kPauseThreshold = std::chrono::seconds(1);
constexpr auto kSettleTime = std::chrono::seconds(2);
constexpr auto kForgetAfter = std::chrono::minutes(10);
constexpr auto kSampleInterval = std::chrono::seconds(5);
constexpr uint32_t kSampledOperations = 20;
constexpr int64_t kSinceMsMax = 86'400'000;  // a day
constexpr size_t kJobsMax = 1024;
constexpr size_t kCommunicatorsMax = 65'536;  // of one job
constexpr Rank kUnknownRank{~0U};

/// Returns the rank at an index of a communicator, or kUnknownRank.
template <typename Communicators>
Rank RankAt(const Communicators& communicators, CommunicatorId id, uint32_t index) {
  auto found = communicators.find(id);
  if (found == communicators.end() || index >= found->second.ranks.size()) return kUnknownRank;
  return found->second.ranks[index];
}

/// Converts a mask of phases of holdfast.h into the detector's mask.
uint8_t PhaseBits(uint32_t phases) {
  const std::pair<uint32_t, detect::Phase> known[] = {{1, detect::Phase::kCollective},
                                                      {2, detect::Phase::kInit},
                                                      {3, detect::Phase::kCompile},
                                                      {4, detect::Phase::kCheckpoint},
                                                      {5, detect::Phase::kEvaluation}};
  uint8_t bits = 0;
  for (const auto& [number, phase] : known) {
    if (phases & (1U << number)) bits |= static_cast<uint8_t>(phase);
  }
  return bits;
}

std::string SubjectText(const detect::Verdict& verdict) {
  if (verdict.edge) {
    return fmt::format("the connection from rank {} to rank {}", verdict.edge->from.value,
                       verdict.edge->to.value);
  }
  if (verdict.ranks.empty()) return "no rank in particular";
  std::vector<uint32_t> ranks;
  for (const Rank rank : verdict.ranks) ranks.push_back(rank.value);
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

bool IsHang(detect::FaultClass fault) {
  switch (fault) {
    case detect::FaultClass::kComputeHang:
    case detect::FaultClass::kCommHang:
    case detect::FaultClass::kSoftwareMismatch:
    case detect::FaultClass::kProgramDeadlock:
      return true;
    case detect::FaultClass::kDead:
    case detect::FaultClass::kCommSlow:
    case detect::FaultClass::kComputeSlow:
    case detect::FaultClass::kFabric:
      return false;
  }
  return false;
}

/// Returns the action for a verdict; for a suspicion, the action if it becomes a verdict.
FaultAction ActionOf(const detect::Verdict& verdict) {
  switch (verdict.action) {
    case detect::Action::kRestartWithoutRoot:
      return FaultAction::kRestartElsewhere;
    case detect::Action::kRestartInPlace:
      return FaultAction::kRestart;
    case detect::Action::kNone:
      return verdict.nodes.empty() ? FaultAction::kRestart : FaultAction::kRestartElsewhere;
    case detect::Action::kAlert:
      return FaultAction::kNote;
  }
  return FaultAction::kNote;
}
}  // namespace

Watcher::Watcher(std::function<void(FaultDetected)> publish, const Attendance& attendance,
                 const detect::DetectorOptions& options, Clock& clock)
    : publish_(std::move(publish)),
      attendance_(attendance),
      options_(options),
      clock_(clock),
      last_evaluation_(clock.Now()),
      loads_(attendance.loads()),
      thread_([this] { Run(); }) {}

Watcher::~Watcher() { Stop(); }

void Watcher::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

Status Watcher::Observe(const std::string& node, uint64_t agent_start, const pb::Digest& digest) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("node", node));
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", digest.job()));
  if (digest.world() == 0 || digest.world() > kWorldMax || digest.incarnation() == 0) {
    return InvalidArgumentError(fmt::format("a digest of incarnation {} with a world of {}",
                                            digest.incarnation(), digest.world()));
  }
  if (!attendance_.IsAttached(node, agent_start)) {
    return FencedError(fmt::format("this agent of node {} is not attached", node));
  }
  const auto running = attendance_.RunningOf(digest.job());
  if (!running || running->incarnation.value != digest.incarnation() ||
      running->world != digest.world()) {
    return Status::Ok();  // of an earlier incarnation, or of an unknown job
  }
  MutexLock lock(mutex_);
  auto found = jobs_.find(digest.job());
  if (found == jobs_.end()) {
    if (jobs_.size() >= kJobsMax)
      return ResourceExhaustedError(
          fmt::format("the detectors watch {} jobs already, which is the limit", kJobsMax));
    found = jobs_.try_emplace(digest.job()).first;
  }
  Job& job = found->second;
  const Incarnation incarnation{digest.incarnation()};
  if (incarnation < job.incarnation) return Status::Ok();  // a newer one has joined
  if (incarnation > job.incarnation) {
    const uint64_t longest_pause_ns = job.longest_pause_ns;
    job = Job();
    job.longest_pause_ns = longest_pause_ns;
    job.incarnation = incarnation;
    job.world = digest.world();
    detect::DetectorOptions options = options_;
    options.longest_pause = Clock::Duration(static_cast<int64_t>(longest_pause_ns));
    job.detector = std::make_unique<detect::Detector>(incarnation, digest.world(), options);
  }
  ++counts_.digests;
  job.last_digest_at = clock_.Now();
  job.readings.Note(node, digest);
  job.detector->Observe(Convert(node, agent_start, digest, job), job.last_digest_at);
  return Status::Ok();
}

Watcher::Counts Watcher::counts() {
  MutexLock lock(mutex_);
  Counts counts = counts_;
  counts.jobs = jobs_.size();
  for (const auto& [name, job] : jobs_) counts.suspected += job.suspected;
  return counts;
}

std::map<std::string, std::vector<ui::RankReading>> Watcher::Readings() {
  MutexLock lock(mutex_);
  std::map<std::string, std::vector<ui::RankReading>> all;
  for (const auto& [name, job] : jobs_) all[name] = job.readings.All();
  return all;
}

void Watcher::Learn(const Communicator& communicator, Rank rank, Job& job, detect::Digest* out) {
  if (communicator.size == 0 || communicator.size > job.world ||
      communicator.index >= communicator.size) {
    return;
  }
  auto found = job.communicators.find(communicator.id);
  if (found == job.communicators.end()) {
    if (job.communicators.size() >= kCommunicatorsMax) return;
    found = job.communicators.try_emplace(communicator.id).first;
    found->second.ranks.assign(communicator.size, kUnknownRank);
    found->second.role = communicator.role;
  }
  Members& members = found->second;
  const auto set = [&members, &job](size_t index, Rank member) {
    if (index >= members.ranks.size() || member.value >= job.world) return;
    if (members.ranks[index] == kUnknownRank) ++members.known;
    members.ranks[index] = member;
  };
  if (communicator.members.size() == communicator.size) {
    for (size_t i = 0; i < communicator.size; ++i) set(i, communicator.members[i]);
  } else {
    set(communicator.index, rank);
  }
  if (members.known != members.ranks.size()) return;
  out->communicators.push_back({.id = communicator.id,
                                .role = members.role,
                                .size = static_cast<uint32_t>(members.ranks.size()),
                                .members = members.ranks});
}

detect::Digest Watcher::Convert(const std::string& node, uint64_t agent_start,
                                const pb::Digest& digest, Job& job) {
  detect::Digest out;
  out.node = node;
  out.incarnation = job.incarnation;
  out.world = digest.world();
  out.agent_start = agent_start;
  out.number = digest.number();
  out.taken_ns = digest.taken_ns();
  int64_t freshest_ms = INT64_MAX;
  for (const pb::ObservedRank& observed : digest.ranks()) {
    const Rank rank{observed.rank()};
    detect::RankState& state = out.ranks.emplace_back();
    state.rank = rank;
    state.alive = observed.alive();
    state.ended_orderly = observed.ended_orderly();
    state.process_state = static_cast<char>(observed.process_state());
    state.processor_wait_percent = observed.processor_wait_percent();
    state.phases = PhaseBits(observed.phases());
    state.step = observed.step();
    job.step = std::max(job.step, observed.step());
    state.silent_ns = observed.silent_ns();
    state.since_step_ns = observed.since_step_ns();
    freshest_ms = std::min(freshest_ms, static_cast<int64_t>(observed.since_step_ns() / 1'000'000));
    for (const pb::StepTime& step : observed.steps()) state.steps.push_back(FromProto(step));
    for (const auto& one : observed.communicators()) Learn(FromProto(one), rank, job, &out);
    for (const auto& one : observed.ended()) out.ended.push_back({rank, FromProto(one)});
    for (const auto& one : observed.completed()) out.completed.push_back({rank, FromProto(one)});
    for (const auto& one : observed.in_flight()) {
      const InFlight in_flight = FromProto(one);
      detect::RankFlight& flight = out.in_flight.emplace_back(
          detect::RankFlight{rank, in_flight.record, in_flight.started, in_flight.age_ns});
      if (!in_flight.edge) continue;
      // An idle edge names the peer of the send or receive that the program called.
      const EdgeWait& edge = *in_flight.edge;
      const Rank peer = RankAt(job.communicators, in_flight.record.communicator, edge.peer);
      if (peer == kUnknownRank) continue;
      flight.edge = detect::PeerEdge{peer, edge.direction, edge.state, edge.completed};
    }
    for (const auto& one : observed.peers()) {
      const PeerTransfers sums = FromProto(one);
      const Rank peer = RankAt(job.communicators, sums.communicator, sums.peer);
      if (peer != kUnknownRank) out.peers.push_back({rank, peer, sums});
    }
  }
  for (const pb::ObservedReach& one : digest.reach()) {
    out.reach.push_back({one.node(), one.reached(), one.took_ns()});
  }
  if (freshest_ms != INT64_MAX) job.since_step_ms[node] = freshest_ms;
  return out;
}

std::optional<pb::SampleRequest> Watcher::SamplesFor(const std::string& node,
                                                     const std::string& name) {
  MutexLock lock(mutex_);
  auto job = jobs_.find(name);
  if (job == jobs_.end()) return std::nullopt;
  uint64_t& has = job->second.sampled[node];
  if (has == job->second.sampling) return std::nullopt;
  has = job->second.sampling;
  pb::SampleRequest request;
  request.set_job(name);
  request.set_operations(kSampledOperations);
  request.set_probe(job->second.detector->needs_probes());
  return request;
}

void Watcher::Run() {
  for (;;) {
    std::vector<FaultDetected> found;
    {
      MutexLock lock(mutex_);
      if (!stopping_) changed_.WaitFor(mutex_, kEvaluateInterval);
      if (stopping_) return;
      const auto now = clock_.Now();
      if (IsSettling(now)) continue;
      std::erase_if(
          jobs_, [&](const auto& job) { return now - job.second.last_digest_at > kForgetAfter; });
      for (auto& [name, job] : jobs_) Evaluate(name, job, &found);
    }
    for (FaultDetected& fault : found) publish_(std::move(fault));
  }
}

/// Returns whether to skip the evaluation: after a pause of this thread, delayed digests must
/// arrive first; after the state was loaded, agents must attach before they can send any.
bool Watcher::IsSettling(Clock::TimePoint now) {
  const auto settle_for = [&](Clock::Duration time) {
    settled_at_ = std::max(settled_at_, now + time);
  };
  if (now - last_evaluation_ > kPauseThreshold) settle_for(kSettleTime);
  if (const uint64_t loads = attendance_.loads(); loads != loads_) {
    loads_ = loads;
    settle_for(kAttachTime);
  }
  last_evaluation_ = now;
  return now < settled_at_;
}

void Watcher::Evaluate(const std::string& name, Job& job, std::vector<FaultDetected>* found) {
  const auto now = clock_.Now();
  const std::vector<detect::Verdict> verdicts = job.detector->Evaluate(now);
  if (!job.detector->wanted_transfers().empty() && now - job.sampled_at >= kSampleInterval) {
    job.sampled_at = now;
    ++job.sampling;
  }
  job.longest_pause_ns =
      std::max(job.longest_pause_ns, static_cast<uint64_t>(job.detector->longest_pause().count()));
  const std::vector<detect::Verdict>& suspicions = job.detector->suspicions();
  job.suspected = suspicions.size();
  const bool publish_hangs = now - job.hang_published_at >= kHangPublishInterval;
  if (publish_hangs) job.hang_published_at = now;
  for (const detect::Verdict& verdict : verdicts) Publish(verdict, name, publish_hangs, job, found);
  for (const detect::Verdict& verdict : suspicions) {
    Publish(verdict, name, publish_hangs, job, found);
  }
}

void Watcher::Publish(const detect::Verdict& verdict, const std::string& name, bool publish_hangs,
                      Job& job, std::vector<FaultDetected>* found) {
  FaultDetected fault = FaultOf(verdict, name, job);
  if (fault.hang && !publish_hangs) return;
  const bool first = job.published
                         .insert(fmt::format("{}{} {}", fault.suspected ? "suspected " : "",
                                             fault.kind, SubjectText(verdict)))
                         .second;
  if (!first && !fault.hang) return;
  if (first) {
    Log(LogLevel::kWarn, fault.suspected ? "FaultSuspected" : "FaultDetected",
        {Kv("job", name), Kv("incarnation", job.incarnation.value), Kv("what", fault.what),
         Kv("action", detect::ToString(verdict.action))});
    ++(fault.suspected ? counts_.suspicions : counts_.faults);
  }
  found->push_back(std::move(fault));
}

FaultDetected Watcher::FaultOf(const detect::Verdict& verdict, const std::string& name,
                               const Job& job) {
  FaultDetected fault;
  fault.job = name;
  fault.incarnation = job.incarnation;
  fault.suspected = verdict.action == detect::Action::kNone;
  fault.kind = detect::ToString(verdict.fault);
  fault.what = fmt::format(
      "{}{}: {}{}, confidence {:.2f}", fault.suspected ? "suspected " : "", fault.kind,
      SubjectText(verdict),
      verdict.nodes.empty() ? "" : fmt::format(" on {}", fmt::join(verdict.nodes, ", ")),
      verdict.confidence);
  fault.evidence = verdict.evidence;
  fault.ranks = verdict.ranks;
  fault.nodes = verdict.nodes;
  fault.action = ActionOf(verdict);
  fault.dead = verdict.fault == detect::FaultClass::kDead && !fault.suspected;
  fault.hang = IsHang(verdict.fault) || fault.suspected;
  fault.stuck = fault.hang && verdict.fault != detect::FaultClass::kComputeHang &&
                verdict.fault != detect::FaultClass::kDead;
  fault.lasting_ms = static_cast<int64_t>(verdict.lasting_ns / 1'000'000);
  fault.longest_pause_ms = static_cast<int64_t>(job.longest_pause_ns / 1'000'000);
  fault.step = job.step;
  int64_t since = INT64_MAX;
  for (const auto& [node, ms] : job.since_step_ms) since = std::min(since, ms);
  const bool known = since != INT64_MAX && fault.action != FaultAction::kNote;
  fault.since_ms = known ? std::min(since, kSinceMsMax) : 0;
  return fault;
}

}  // namespace holdfast::coord
