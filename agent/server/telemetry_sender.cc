#include "agent/server/telemetry_sender.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <optional>
#include <set>

#include "agent/server/grpc_link.h"
#include "coordinator/api/telemetry_convert.h"

namespace holdfast::agent {
namespace {
namespace pb = ::holdfast::coordinator;

constexpr std::chrono::milliseconds kPollInterval(100);
// A poll that is later than this means that the agent, or the whole machine, was stopped.
constexpr std::chrono::milliseconds kStopped(900);
constexpr int kCommunicatorInterval = 50;  // in polls; a coordinator may have lost them
// In nanoseconds. Younger operations are not yet evidence of a hang.
constexpr uint64_t kFlightAgeMin = 700'000'000;
// In nanoseconds. From this age on, digests include which peers are reachable. A hang is reported
// after 5 s.
constexpr uint64_t kStuckAge = 2'000'000'000;
// In nanoseconds. From this age of the last step on, the rank's waits for a processor are measured.
constexpr uint64_t kNoStepAge = 3'000'000'000;

// How long peers are probed after a request, which the coordinator repeats every few seconds.
constexpr std::chrono::seconds kProbeTime(10);

uint64_t MonotonicNanos() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

/// Returns the peer that the operation waits for. A send or a receive has one peer, named by the
/// program; the known connection of the communicator may belong to another operation.
std::optional<EdgeWait> EdgeToReport(const InFlight& flight) {
  if (!IsPairwise(flight.record.kind) || flight.record.peer == kNoPeer) return flight.edge;
  const EdgeWait own{.peer = flight.record.peer,
                     .direction = flight.record.kind == CollectiveKind::kSend
                                      ? Direction::kSend
                                      : Direction::kReceive};
  const bool known =
      flight.edge && flight.edge->peer == own.peer && flight.edge->direction == own.direction;
  return known ? flight.edge : own;
}

/// Returns the operations of a rank to report. These are all operations that have started, since
/// the rank waits for them. Of the operations that are only enqueued, the oldest of each
/// communicator is reported, since it starts next.
std::vector<const InFlight*> FlightsToReport(const std::vector<InFlight>& in_flight) {
  std::vector<const InFlight*> reported;
  std::map<CommunicatorId, const InFlight*> next;  // by communicator
  for (const InFlight& flight : in_flight) {
    if (flight.age_ns < kFlightAgeMin) continue;
    if (flight.started) {
      reported.push_back(&flight);
      continue;
    }
    const InFlight*& oldest = next[flight.record.communicator];
    if (oldest == nullptr || flight.age_ns > oldest->age_ns) oldest = &flight;
  }
  for (const auto& [communicator, flight] : next) reported.push_back(flight);
  return reported;
}

void Fill(const RankTelemetry& telemetry, bool with_communicators, pb::ObservedRank* out) {
  out->set_phases(telemetry.phases);
  out->set_silent_ns(telemetry.silent_ns);
  if (telemetry.progress.known) {
    out->set_step(telemetry.progress.step);
    out->set_since_step_ns(telemetry.progress.age_ns);
  }
  for (const StepTime& step : telemetry.steps) coord::ToProto(step, out->add_steps());
  if (with_communicators || telemetry.communicators_changed) {
    for (const Communicator& communicator : telemetry.communicators) {
      coord::ToProto(communicator, out->add_communicators());
    }
  }
  for (const CollectiveRecord& record : telemetry.ended) {
    if (record.started_ns != 0 && record.ended_ns != 0) coord::ToProto(record, out->add_ended());
  }
  for (const InFlight* flight : FlightsToReport(telemetry.in_flight)) {
    InFlight reported = *flight;
    reported.edge = EdgeToReport(*flight);
    coord::ToProto(reported, out->add_in_flight());
  }
  for (const CompletedCount& completed : telemetry.completed) {
    coord::ToProto(completed, out->add_completed());
  }
  for (const PeerTransfers& transfers : telemetry.peers) {
    coord::ToProto(transfers, out->add_peers());
  }
}
}  // namespace

TelemetrySender::TelemetrySender(Node& node, const GpuWatch& gpus, GrpcCoordinatorLink& link)
    : ranks_(node.watched()),
      reach_(node.reach()),
      gpus_(gpus),
      link_(link),
      filter_(std::chrono::nanoseconds(kPollInterval).count(),
              std::chrono::nanoseconds(kStopped).count()),
      thread_([this] { Run(); }) {}

TelemetrySender::~TelemetrySender() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

std::vector<pb::Digest> TelemetrySender::DigestsOf(const std::vector<ObservedRank>& observations,
                                                   uint64_t taken_ns, bool with_communicators) {
  std::map<std::string, pb::Digest> by_job;
  for (const ObservedRank& observed : observations) {
    pb::Digest& digest = by_job[observed.who.job];
    digest.set_job(observed.who.job);
    digest.set_incarnation(observed.who.incarnation.value);
    digest.set_world(observed.who.world);
    digest.set_taken_ns(taken_ns);
    pb::ObservedRank* rank = digest.add_ranks();
    rank->set_rank(observed.who.rank.value);
    rank->set_alive(observed.alive);
    rank->set_ended_orderly(observed.ended_orderly);
    rank->set_process_state(static_cast<uint8_t>(observed.process_state));
    rank->set_processor_wait_percent(observed.processor_wait_percent);
    if (observed.telemetry.present) Fill(observed.telemetry, with_communicators, rank);
  }
  std::vector<pb::Digest> digests;
  for (auto& [job, digest] : by_job) digests.push_back(std::move(digest));
  return digests;
}

TelemetrySender::Counts TelemetrySender::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

void TelemetrySender::Count(const std::vector<ObservedRank>& observations) {
  MutexLock lock(mutex_);
  for (const ObservedRank& observed : observations) {
    counts_.dropped += observed.telemetry.gaps.dropped;
    counts_.overwritten += observed.telemetry.gaps.lost;
    counts_.nonsense += observed.telemetry.gaps.nonsense;
  }
}

/// Measures the waits for a processor of ranks that make no steps. On a machine with too many
/// processes these ranks are slow, and not hung.
void TelemetrySender::MeasureWaits(uint64_t now_ns, std::vector<ObservedRank>* observations) {
  for (ObservedRank& observed : *observations) {
    const bool moves = observed.telemetry.progress.age_ns < kNoStepAge;
    if (!observed.alive || !observed.telemetry.present || moves) continue;
    observed.processor_wait_percent =
        waits_.PercentOf(observed.who.process.pid, observed.process_state, now_ns);
  }
}

/// Adds which peers are reachable and how fast they answer, if an operation of the job is stuck or
/// the coordinator has requested probes: a link may be the cause.
void TelemetrySender::AddReach(const std::vector<ObservedRank>& observations, uint64_t now_ns,
                               std::vector<pb::Digest>* digests) {
  const auto now = std::chrono::nanoseconds(now_ns);
  std::erase_if(probe_until_, [now](const auto& job) { return job.second <= now; });
  std::set<std::string> stuck;
  for (const ObservedRank& observed : observations) {
    for (const InFlight& flight : observed.telemetry.in_flight) {
      if (flight.started && flight.age_ns >= kStuckAge) stuck.insert(observed.who.job);
    }
  }
  for (pb::Digest& digest : *digests) {
    if (stuck.count(digest.job()) + probe_until_.count(digest.job()) == 0) continue;
    for (const PeerProbe& answer : reach_.RequestProbes(digest.job())) {
      pb::ObservedReach* one = digest.add_reach();
      one->set_node(answer.node);
      one->set_reached(answer.reached);
      one->set_took_ns(answer.took_ns);
    }
  }
}

void TelemetrySender::Run() {
  bool sent_communicators = false;
  for (int poll = 0;; ++poll) {
    {
      MutexLock lock(mutex_);
      if (!stopping_) changed_.WaitFor(mutex_, kPollInterval);
      if (stopping_) return;
    }
    const uint64_t now = MonotonicNanos();
    const bool with_communicators = !sent_communicators || poll % kCommunicatorInterval == 0;
    std::vector<ObservedRank> observations = filter_.Take(ranks_.Observe(now), now);
    Count(observations);
    MeasureWaits(now, &observations);
    std::vector<pb::Digest> digests = DigestsOf(observations, now, with_communicators);
    AddReach(observations, now, &digests);
    for (pb::Digest& digest : digests) digest.set_number(numbers_[digest.job()]++);
    batch_.Add(std::move(digests), std::move(observations));
    const std::vector<GpuError> errors = gpus_.After(sent_errors_);
    if (!batch_.IsDue(now) && errors.empty()) continue;
    std::vector<DigestBatch::Poll> polls = batch_.Take(now);
    const bool sent = Send(polls, errors, now);
    if (!polls.empty()) sent_communicators = sent;
    if (!sent) continue;
    for (const DigestBatch::Poll& one : polls) filter_.RecordSent(one.observations);
  }
}

bool TelemetrySender::Send(std::vector<DigestBatch::Poll>& polls,
                           const std::vector<GpuError>& errors, uint64_t now_ns) {
  pb::ObserveRequest request;
  for (DigestBatch::Poll& poll : polls) {
    for (pb::Digest& digest : poll.digests) *request.add_digests() = std::move(digest);
  }
  for (const GpuError& error : errors) {
    pb::ObservedGpuError* one = request.add_gpu_errors();
    one->set_number(error.number);
    one->set_device(error.device);
    one->set_bus_id(error.bus_id);
    one->set_xid(error.xid);
    one->set_age_ns(now_ns - std::min(now_ns, error.seen_ns));
  }
  const auto digests = static_cast<uint64_t>(request.digests_size());
  auto reply = link_.Observe(std::move(request));
  {
    MutexLock lock(mutex_);
    (reply ? counts_.sent : counts_.unsent) += digests;
  }
  if (!reply) return false;
  batch_.SetPause(uint64_t{reply->pause_ms()} * 1'000'000);
  if (!errors.empty()) sent_errors_ = errors.back().number;
  for (const pb::SampleRequest& sample : reply->samples()) {
    if (sample.operations() != 0) ranks_.Sample(sample.job(), sample.operations());
    if (sample.probe()) probe_until_[sample.job()] = std::chrono::nanoseconds(now_ns) + kProbeTime;
  }
  return true;
}

}  // namespace holdfast::agent
