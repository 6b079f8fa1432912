#include "agent/server/telemetry_sender.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <set>

#include "agent/server/grpc_link.h"

namespace holdfast::agent {
namespace {
namespace pb = ::holdfast::coordinator;

constexpr std::chrono::milliseconds kLookEvery(100);
// This process, or the machine with all its trainers, was stopped.
constexpr std::chrono::milliseconds kStoodStill(900);
constexpr int kCommunicatorsEvery = 50;  // looks: whoever has forgotten them knows them again
// Younger operations say nothing about a hang yet.
constexpr uint64_t kFlightAgeLeast = 700'000'000;
// From here on it is worth knowing which peers are reached; a hang is told after five seconds.
constexpr uint64_t kStuckAge = 2'000'000'000;

uint64_t MonotonicNanos() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void Fill(const CollectiveValues& values, pb::ObservedOperation* out) {
  out->set_communicator(values.communicator);
  out->set_kind(static_cast<uint32_t>(values.kind));
  out->set_dtype(values.dtype);
  out->set_algorithm(static_cast<uint32_t>(values.algorithm));
  out->set_protocol(static_cast<uint32_t>(values.protocol));
  out->set_sequence(values.sequence);
  out->set_bytes(values.bytes);
  out->set_start_ns(values.started_ns);
  if (values.ended_ns > values.started_ns)
    out->set_duration_ns(values.ended_ns - values.started_ns);
  if (values.enqueued_ns != 0 && values.started_ns > values.enqueued_ns) {
    out->set_queued_ns(values.started_ns - values.enqueued_ns);
  }
  out->set_blocked_ns(values.blocked_ns);
  out->set_moved_bytes(values.moved_bytes);
}

/// Whom it waits for. A send or a receive has one peer, which the program named; the connection
/// that is known of its communicator may be another's.
void FillPeer(const InFlightView& flight, pb::ObservedFlight* out) {
  const bool sends = flight.values.kind == CollectiveKind::kSend;
  const bool pairwise = sends || flight.values.kind == CollectiveKind::kReceive;
  const Direction direction = sends ? Direction::kSend : Direction::kReceive;
  const bool own = pairwise && flight.values.peer != kNoPeer;
  const bool edge =
      flight.edge &&
      (!own || (flight.edge->peer == flight.values.peer && flight.edge->direction == direction));
  if (edge) {
    out->set_has_edge(true);
    out->set_peer(flight.edge->peer);
    out->set_direction(static_cast<uint32_t>(flight.edge->direction));
    out->set_edge_state(static_cast<uint32_t>(flight.edge->state));
  } else if (own) {
    out->set_has_edge(true);
    out->set_peer(flight.values.peer);
    out->set_direction(static_cast<uint32_t>(direction));
  }
}

/// What is worth telling of a rank's operations: all that run, since the rank waits in them, and of
/// those that its CPU has only enqueued the oldest of each communicator, which comes next.
std::vector<const InFlightView*> FlightsToTell(const std::vector<InFlightView>& in_flight) {
  std::vector<const InFlightView*> told;
  std::map<uint64_t, const InFlightView*> next;  // by communicator
  for (const InFlightView& flight : in_flight) {
    if (flight.age_ns < kFlightAgeLeast) continue;
    if (flight.started) {
      told.push_back(&flight);
      continue;
    }
    const InFlightView*& oldest = next[flight.values.communicator];
    if (oldest == nullptr || flight.age_ns > oldest->age_ns) oldest = &flight;
  }
  for (const auto& [communicator, flight] : next) told.push_back(flight);
  return told;
}

void Fill(const RankTelemetry& telemetry, bool with_communicators, pb::ObservedRank* out) {
  out->set_phases(telemetry.phases);
  out->set_silent_ns(telemetry.silent_ns);
  if (telemetry.progress.known) {
    out->set_step(telemetry.progress.step);
    out->set_since_step_ns(telemetry.progress.age_ns);
  }
  for (const StepView& step : telemetry.steps) {
    pb::ObservedStep* one = out->add_steps();
    one->set_step(step.step);
    one->set_duration_ns(step.duration_ns);
  }
  if (with_communicators || telemetry.communicators_changed) {
    for (const CommunicatorView& view : telemetry.communicators) {
      pb::ObservedCommunicator* one = out->add_communicators();
      one->set_id(view.id);
      one->set_role(static_cast<uint32_t>(view.role));
      one->set_size(view.size);
      one->set_index(view.index);
      for (const uint32_t member : view.members) one->add_members(member);
    }
  }
  for (const CollectiveValues& values : telemetry.ended) {
    if (values.started_ns != 0 && values.ended_ns != 0) Fill(values, out->add_operations());
  }
  for (const InFlightView* flight : FlightsToTell(telemetry.in_flight)) {
    pb::ObservedFlight* one = out->add_in_flight();
    Fill(flight->values, one->mutable_operation());
    one->set_started(flight->started);
    one->set_age_ns(flight->age_ns);
    FillPeer(*flight, one);
  }
  for (const CompletedCount& count : telemetry.completed) {
    pb::ObservedCount* one = out->add_completed();
    one->set_communicator(count.communicator);
    one->set_kind(static_cast<uint32_t>(count.kind));
    one->set_count(count.count);
  }
  for (const PeerSumsView& sums : telemetry.peers) {
    pb::ObservedPeer* one = out->add_peers();
    one->set_communicator(sums.communicator);
    one->set_peer(sums.peer);
    one->set_direction(static_cast<uint32_t>(sums.direction));
    one->set_bytes(sums.bytes);
    // Sent bytes wait on the wire, bytes to receive wait for their sender.
    one->set_wait_ns(sums.direction == Direction::kSend ? sums.transfer_ns : sums.peer_wait_ns);
    one->set_transfers(sums.transfers);
  }
}
}  // namespace

TelemetrySender::TelemetrySender(Node& node, const GpuWatch& gpus, GrpcCoordinatorLink& link)
    : ranks_(node.watched()),
      reach_(node.reach()),
      gpus_(gpus),
      link_(link),
      filter_(std::chrono::nanoseconds(kLookEvery).count(),
              std::chrono::nanoseconds(kStoodStill).count()),
      thread_([this] { Run(); }) {}

TelemetrySender::~TelemetrySender() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

std::vector<pb::Digest> TelemetrySender::DigestsOf(const std::vector<RankSight>& sights,
                                                   uint64_t taken_ns, bool with_communicators) {
  std::map<std::string, pb::Digest> by_job;
  for (const RankSight& sight : sights) {
    pb::Digest& digest = by_job[sight.who.job];
    digest.set_job(sight.who.job);
    digest.set_incarnation(sight.who.incarnation.value);
    digest.set_world(sight.who.world);
    digest.set_taken_ns(taken_ns);
    pb::ObservedRank* rank = digest.add_ranks();
    rank->set_rank(sight.who.rank.value);
    rank->set_alive(sight.alive);
    rank->set_ended_orderly(sight.ended_orderly);
    rank->set_process_state(static_cast<uint8_t>(sight.process_state));
    if (sight.telemetry.present) Fill(sight.telemetry, with_communicators, rank);
  }
  std::vector<pb::Digest> digests;
  for (auto& [job, digest] : by_job) digests.push_back(std::move(digest));
  return digests;
}

TelemetrySender::Counts TelemetrySender::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

void TelemetrySender::Count(const std::vector<RankSight>& sights) {
  MutexLock lock(mutex_);
  for (const RankSight& sight : sights) {
    counts_.dropped += sight.telemetry.gaps.dropped;
    counts_.overwritten += sight.telemetry.gaps.lost;
    counts_.nonsense += sight.telemetry.gaps.nonsense;
  }
}

/// Where an operation does not end it may be for want of a link.
void TelemetrySender::AddReach(const std::vector<RankSight>& sights,
                               std::vector<pb::Digest>* digests) {
  std::set<std::string> stuck;
  for (const RankSight& sight : sights) {
    for (const InFlightView& flight : sight.telemetry.in_flight) {
      if (flight.started && flight.age_ns >= kStuckAge) stuck.insert(sight.who.job);
    }
  }
  for (pb::Digest& digest : *digests) {
    if (stuck.count(digest.job()) == 0) continue;
    for (const PeerAnswer& answer : reach_.Wonder(digest.job())) {
      pb::ObservedReach* one = digest.add_reach();
      one->set_node(answer.node);
      one->set_reached(answer.reached);
    }
  }
}

void TelemetrySender::Run() {
  bool told_communicators = false;
  for (int look = 0;; ++look) {
    {
      MutexLock lock(mutex_);
      if (!stopping_) changed_.WaitFor(mutex_, kLookEvery);
      if (stopping_) return;
    }
    const uint64_t now = MonotonicNanos();
    const bool with_communicators = !told_communicators || look % kCommunicatorsEvery == 0;
    const std::vector<RankSight> sights = filter_.Take(ranks_.Look(now), now);
    Count(sights);
    std::vector<pb::Digest> digests = DigestsOf(sights, now, with_communicators);
    AddReach(sights, &digests);
    const std::vector<GpuError> errors = gpus_.After(told_errors_);
    if (digests.empty() && errors.empty()) continue;
    const bool any = !digests.empty();
    const bool sent = Send(std::move(digests), errors, now);
    if (any) told_communicators = sent;
    if (any && sent) filter_.Told(sights);
  }
}

bool TelemetrySender::Send(std::vector<pb::Digest> digests, const std::vector<GpuError>& errors,
                           uint64_t now_ns) {
  pb::ObserveRequest request;
  for (pb::Digest& digest : digests) {
    digest.set_number(numbers_[digest.job()]++);
    *request.add_digests() = std::move(digest);
  }
  for (const GpuError& error : errors) {
    pb::ObservedGpuError* one = request.add_gpu_errors();
    one->set_number(error.number);
    one->set_device(error.device);
    one->set_bus_id(error.bus_id);
    one->set_xid(error.xid);
    one->set_age_ns(now_ns - std::min(now_ns, error.seen_ns));
  }
  auto reply = link_.Observe(std::move(request));
  {
    MutexLock lock(mutex_);
    (reply ? counts_.sent : counts_.unsent) += digests.size();
  }
  if (!reply) return false;
  if (!errors.empty()) told_errors_ = errors.back().number;
  for (const pb::SampleRequest& sample : reply->samples()) {
    ranks_.Sample(sample.job(), sample.operations());
  }
  return true;
}

}  // namespace holdfast::agent
