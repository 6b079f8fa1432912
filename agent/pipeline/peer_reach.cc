#include "agent/pipeline/peer_reach.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace holdfast::agent {
namespace {
constexpr size_t kAsked = 4;  // of a group, each by the four before it
constexpr std::chrono::milliseconds kAnswerWithin(1000);
constexpr std::chrono::milliseconds kRoundEvery(1000);
constexpr std::chrono::milliseconds kWonderFor(1000);
constexpr std::chrono::milliseconds kAnswersLast(3000);

/// Only a peer says these.
bool Answered(const Status& status) {
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
    for (size_t i = 1; i < members.size() && peers.size() < kAsked; ++i) {
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

std::vector<PeerAnswer> PeerReach::Wonder(const std::string& job) {
  MutexLock lock(mutex_);
  auto found = jobs_.find(job);
  if (found == jobs_.end()) return {};
  const auto now = clock_.Now();
  found->second.wondered = now;
  changed_.NotifyAll();
  const bool fresh = found->second.answered != Clock::TimePoint::min() &&
                     now - found->second.answered < kAnswersLast;
  return fresh ? found->second.answers : std::vector<PeerAnswer>();
}

void PeerReach::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    const auto now = clock_.Now();
    std::optional<std::string> due;
    bool anybody = false;
    for (const auto& [name, job] : jobs_) {
      const bool wondered =
          job.wondered != Clock::TimePoint::min() && now - job.wondered < kWonderFor;
      const bool asked =
          job.answered != Clock::TimePoint::min() && now - job.answered < kRoundEvery;
      anybody = anybody || wondered;
      if (wondered && !asked) due = name;
    }
    if (!due && anybody) changed_.WaitFor(mutex_, kRoundEvery / 4);
    if (!due && !anybody) changed_.Wait(mutex_);
    if (!due) continue;
    const Job whom = jobs_[*due];
    mutex_.Unlock();
    std::vector<PeerAnswer> answers = Ask(*due, whom);
    mutex_.Lock();
    auto job = jobs_.find(*due);
    if (job == jobs_.end()) continue;
    job->second.answers = std::move(answers);
    job->second.answered = clock_.Now();
  }
}

/// All at once: who cannot be reached costs the whole time.
std::vector<PeerAnswer> PeerReach::Ask(const std::string& job, const Job& whom) {
  std::vector<PeerAnswer> answers(whom.peers.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < whom.peers.size(); ++i) {
    answers[i].node = whom.peers[i].first;
    threads.emplace_back([&, i] {
      PeerRequest request;
      request.kind = PeerRequestKind::kSeal;
      request.job = job;
      request.version = {Incarnation{1}, Step{0}};
      request.incarnation = Incarnation{1};
      request.bytes = 1;
      auto stream = transport_.Open(whom.peers[i].second, request, clock_.Now() + kAnswerWithin);
      answers[i].reached = stream.has_value() || Answered(stream.error());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return answers;
}

}  // namespace holdfast::agent
