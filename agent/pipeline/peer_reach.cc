#include "agent/pipeline/peer_reach.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace holdfast::agent {
namespace {
constexpr size_t kProbedPeers = 4;  // the next members of the group
constexpr std::chrono::milliseconds kProbeTimeout(1000);
constexpr std::chrono::milliseconds kProbeInterval(1000);
constexpr std::chrono::milliseconds kRequestLifetime(1000);
constexpr std::chrono::milliseconds kResultLifetime(3000);

/// Returns whether the error came from the peer and not from the network.
bool IsAnswer(const Status& status) {
  constexpr ErrorCode kAnswers[] = {ErrorCode::kNotFound, ErrorCode::kFenced,
                                    ErrorCode::kResourceExhausted, ErrorCode::kPermissionDenied};
  return std::find(std::begin(kAnswers), std::end(kAnswers), status.code()) != std::end(kAnswers);
}
}  // namespace

PeerReach::PeerReach(PeerTransport& transport, std::string node, Clock& clock)
    : transport_(transport), node_(std::move(node)), clock_(clock), thread_([this] { Run(); }) {}

PeerReach::~PeerReach() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void PeerReach::SetGroup(const std::string& job, const std::optional<GroupPlan>& group) {
  std::vector<std::pair<std::string, std::string>> peers;
  const auto position = group ? group->PositionOf(node_) : std::nullopt;
  if (position) {
    const std::vector<PlanMember>& members = group->members();
    for (size_t i = 1; i < members.size() && peers.size() < kProbedPeers; ++i) {
      const PlanMember& member = members[(*position + i) % members.size()];
      if (!member.address.empty()) peers.emplace_back(member.node, member.address);
    }
  }
  MutexLock lock(mutex_);
  if (peers.empty()) {
    jobs_.erase(job);
  } else {
    jobs_[job].peers = std::move(peers);
  }
}

std::vector<PeerProbe> PeerReach::RequestProbes(const std::string& job) {
  MutexLock lock(mutex_);
  auto found = jobs_.find(job);
  if (found == jobs_.end()) return {};
  const auto now = clock_.Now();
  found->second.requested_at = now;
  changed_.NotifyAll();
  const bool fresh = found->second.probed_at != Clock::TimePoint::min() &&
                     now - found->second.probed_at < kResultLifetime;
  return fresh ? found->second.results : std::vector<PeerProbe>();
}

void PeerReach::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    const auto now = clock_.Now();
    std::optional<std::string> due;
    bool any_requested = false;
    for (const auto& [name, job] : jobs_) {
      const bool requested =
          job.requested_at != Clock::TimePoint::min() && now - job.requested_at < kRequestLifetime;
      const bool probed =
          job.probed_at != Clock::TimePoint::min() && now - job.probed_at < kProbeInterval;
      any_requested = any_requested || requested;
      if (requested && !probed) due = name;
    }
    if (!due && any_requested) changed_.WaitFor(mutex_, kProbeInterval / 4);
    if (!due && !any_requested) changed_.Wait(mutex_);
    if (!due) continue;
    const Job probed = jobs_[*due];
    mutex_.Unlock();
    std::vector<PeerProbe> results = Probe(*due, probed);
    mutex_.Lock();
    auto job = jobs_.find(*due);
    if (job == jobs_.end()) continue;  // its group was removed during the probe
    job->second.results = std::move(results);
    job->second.probed_at = clock_.Now();
  }
}

/// Probes all peers in parallel, since each unreachable one takes the full timeout.
std::vector<PeerProbe> PeerReach::Probe(const std::string& name, const Job& job) {
  std::vector<PeerProbe> results(job.peers.size());
  std::vector<Thread> threads;
  for (size_t i = 0; i < job.peers.size(); ++i) {
    results[i].node = job.peers[i].first;
    threads.emplace_back([&, i] {
      // A version that cannot exist: any answer shows that the peer is reachable.
      PeerRequest request;
      request.kind = PeerRequestKind::kSeal;
      request.job = name;
      request.version = {Incarnation{1}, Step{0}};
      request.incarnation = Incarnation{1};
      request.bytes = 1;
      request.node = job.peers[i].first;
      const auto begin = clock_.Now();
      auto stream = transport_.Open(job.peers[i].second, request, begin + kProbeTimeout);
      const auto took = clock_.Now() - begin;
      results[i].reached = stream.has_value() || IsAnswer(stream.error());
      // A refused connection is no measurement of the link.
      if (results[i].reached || took >= kProbeTimeout) {
        results[i].took_ns = static_cast<uint64_t>(took.count());
      }
    });
  }
  for (Thread& thread : threads) thread.join();
  return results;
}

}  // namespace holdfast::agent
