#include "agent/pipeline/node.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

namespace holdfast::agent {
namespace {
constexpr int kTickMs = 100;
// Interval at which the warning about quarantined files is updated, also after an operator has
// deleted them.
constexpr std::chrono::seconds kQuarantineCheckPause(5);
}  // namespace

Node::Node(const NodeOptions& options, Arena& arena, Volume& volume, CoordinatorLink& link,
           PeerTransport& peers, Clock& clock)
    : setup_{.options = options,
             .arena = arena,
             .volume = volume,
             .link = link,
             .peers = peers,
             .clock = clock} {}

Node::~Node() { Stop(); }

Status Node::Serve(UniqueFd listener) {
  if (!trainers_.loop.valid()) return ErrnoStatus(errno, "eventfd");
  trainers_.server.Listen(std::move(listener));
  trainers_.processes.Load();
  loop_thread_ = Thread([this] { RunLoop(); });
  scrubber_ = std::make_unique<Scrubber>(setup_.options.scrub, shards_.local, setup_.volume,
                                         shards_.damage, setup_.clock);
  return Status::Ok();
}

void Node::RunLoop() {
  Clock::TimePoint next_tick = setup_.clock.Now();
  while (!trainers_.loop.stopping()) {
    trainers_.server.Poll(kTickMs);
    if (setup_.clock.Now() < next_tick) continue;
    next_tick = setup_.clock.Now() + std::chrono::milliseconds(kTickMs);
    Tick();
  }
}

void Node::Tick() {
  trainers_.server.Tick();
  trainers_.preparer.ExpireParked();
  trainers_.job_service.Tick();
  trainers_.stopped_ranks.Tick();
  const Clock::TimePoint now = setup_.clock.Now();
  if (now < next_quarantine_check_) return;
  next_quarantine_check_ = now + kQuarantineCheckPause;
  shards_.disks.WarnOfQuarantine();
}

void Node::Stop() {
  trainers_.loop.Stop();
  if (loop_thread_.joinable()) loop_thread_.join();
  trainers_.parity.Clear();
  scrubber_.reset();
  shards_.workers.Stop();
  trainers_.preparer.Stop();
  shards_.background.Stop();
  shards_.commits.Flush();
  shards_.peer_source.indexes().SetWhole(nullptr);
  trainers_.readers.Stop();
  trainers_.sessions.Clear();
  shards_.ranks.Clear();
}

bool Node::StopSharedTiers(int64_t timeout_ms) {
  const bool copies = trainers_.preparer.StopCopies(timeout_ms);
  return shards_.shared_tiers.StopWithin(timeout_ms) && copies;
}

bool Node::Flush(int64_t timeout_ms) {
  const Clock::TimePoint deadline = setup_.clock.Now() + std::chrono::milliseconds(timeout_ms);
  const std::vector<RankLease> ranks = shards_.ranks.All();
  for (const RankLease& rank : ranks) rank->slots.disk().StartFlush();
  bool flushed = true;
  for (const RankLease& rank : ranks)
    flushed = rank->slots.disk().AwaitFlushed(deadline) && flushed;
  return flushed;
}

std::map<std::string, DepartedJob> Node::Depart(int64_t grace_ms,
                                                const std::function<bool()>& interrupted) {
  const auto reaches = [this](const TierTraits& traits) {
    return IsShared(traits.tier) && setup_.options.shared_tiers[traits.tier] != nullptr;
  };
  return Departure({.ranks = shards_.ranks,
                    .preparer = trainers_.preparer,
                    .link = setup_.link,
                    .clock = setup_.clock,
                    .shared_tiers = std::ranges::any_of(kTierTable, reaches)})
      .Run(grace_ms, interrupted);
}

void Node::OnJobState(JobState state) {
  trainers_.loop.Post([this, state = std::move(state)] { trainers_.job_service.Apply(state); });
}

void Node::OnPrepareShard(PrepareShard prepare) {
  trainers_.loop.Post([this, prepare = std::move(prepare)] { trainers_.preparer.Apply(prepare); });
}

void Node::OnRemoveVersion(RemoveVersion remove) {
  trainers_.loop.Post([this, remove = std::move(remove)] { trainers_.job_service.Remove(remove); });
}

void Node::OnLife(const SeenLife& seen) {
  trainers_.loop.Post([this, seen] { trainers_.job_service.ApplyLife(seen); });
}

Scrubber::Counts Node::scrub_counts() const {
  return scrubber_ == nullptr ? Scrubber::Counts() : scrubber_->counts();
}

}  // namespace holdfast::agent
