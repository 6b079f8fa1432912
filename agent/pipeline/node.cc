#include "agent/pipeline/node.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

namespace holdfast::agent {
namespace {
constexpr uint32_t kWorkers = 4;
constexpr int kTickMs = 100;
// Interval at which the warning about quarantined files is updated, also after an operator has
// deleted them.
constexpr std::chrono::seconds kQuarantineCheckPause(5);

PerTier<TierStore*> WithDisk(PerTier<TierStore*> stores, Volume& volume) {
  stores[Tier::kDisk] = &volume;
  return stores;
}
}  // namespace

Node::Node(const NodeOptions& options, Arena& arena, Volume& volume, CoordinatorLink& link,
           PeerTransport& peers, Clock& clock)
    : options_(options),
      volume_(volume),
      link_(link),
      clock_(clock),
      checksums_(options.checksum_threads),
      ranks_({.disk_every_steps = options.disk_every_steps,
              .peer_every_steps = options.peer_every_steps,
              .seen_life = options.seen_life},
             arena, volume, checksums_, clock),
      memory_(ranks_, arena, link, options.before_reserve),
      warnings_(link),
      stopped_ranks_(ranks_, link, warnings_),
      damage_(ranks_, volume, link, options.shared_tiers),
      shards_(ranks_, volume, damage_, options.shared_tiers),
      peer_source_(options.node, ranks_, shards_, damage_, peers, clock),
      reach_(peers, options.node, clock),
      workers_(kWorkers, clock),
      background_(1, clock),
      restore_tools_{.reach = {options.node, peer_source_, peers, clock},
                     .volume = volume,
                     .local = shards_,
                     .link = link,
                     .clock = clock,
                     .damage = damage_,
                     .workers = workers_,
                     .stores = WithDisk(options.shared_tiers, volume)},
      adoption_(ranks_, arena, volume, link, damage_, workers_, clock),
      disks_(volume, link, damage_, warnings_, background_),
      groups_(ranks_, volume, shards_, link, background_, clock_),
      commits_(ranks_, volume, link, background_, clock_),
      indexes_(volume, peer_source_.indexes(), background_, clock_),
      shared_(options.shared_tiers, link, warnings_, clock),
      parity_({.node = options.node,
               .build_timeout_ms = options.peer_build_timeout_ms,
               .ranks = ranks_,
               .memory = memory_,
               .source = peer_source_,
               .transport = peers,
               .link = link,
               .warnings = warnings_,
               .clock = clock},
              reach_, background_),
      processes_(options.trainers_file, options.processes),
      saves_(link, warnings_, loop_, sessions_, clock),
      preparer_(restore_tools_, options.prepare_wait_ms, loop_, ranks_, memory_, parity_, jobs_,
                sessions_, options.copies_at_once),
      readers_(restore_tools_, loop_, sessions_, preparer_),
      restores_(restore_tools_, loop_, sessions_, preparer_, readers_),
      joins_({.node = options.node, .arena_bytes = arena.usage().budget_bytes}, link, clock, loop_,
             sessions_, ranks_, memory_, watched_, workers_, processes_),
      trainers_(options.hello_timeout_ms, options.sessions,
                {.joins = joins_,
                 .saves = saves_,
                 .restores = restores_,
                 .readers = readers_,
                 .preparer = preparer_},
                link, clock, loop_, sessions_, ranks_, jobs_, watched_, processes_,
                options.processes),
      release_(ranks_, memory_, parity_, sessions_, workers_, clock),
      job_service_({.jobs = jobs_,
                    .ranks = ranks_,
                    .release = release_,
                    .peer_source = peer_source_,
                    .parity = parity_,
                    .disks = disks_,
                    .groups = groups_,
                    .commits = commits_,
                    .indexes = indexes_,
                    .shared = shared_,
                    .preparer = preparer_,
                    .saves = saves_,
                    .joins = joins_,
                    .trainers = trainers_,
                    .processes = processes_,
                    .warnings = warnings_,
                    .link = link,
                    .clock = clock}) {
  ranks_.SetEvents(saves_);
  peer_source_.indexes().SetWhole(
      [this](const IndexedVersion& of) { return readers_.OpenIndexForPeer(of); });
  shared_.SetLife(options.seen_life.life);
}

Node::~Node() { Stop(); }

Status Node::Serve(UniqueFd listener) {
  if (!loop_.valid()) return ErrnoStatus(errno, "eventfd");
  trainers_.Listen(std::move(listener));
  processes_.Load();
  loop_thread_ = Thread([this] { RunLoop(); });
  scrubber_ = std::make_unique<Scrubber>(options_.scrub, shards_, volume_, damage_, clock_);
  return Status::Ok();
}

void Node::RunLoop() {
  Clock::TimePoint next_tick = clock_.Now();
  while (!loop_.stopping()) {
    trainers_.Poll(kTickMs);
    if (clock_.Now() < next_tick) continue;
    next_tick = clock_.Now() + std::chrono::milliseconds(kTickMs);
    Tick();
  }
}

void Node::Tick() {
  trainers_.Tick();
  preparer_.ExpireParked();
  job_service_.Tick();
  stopped_ranks_.Tick();
  const Clock::TimePoint now = clock_.Now();
  if (now < next_quarantine_check_) return;
  next_quarantine_check_ = now + kQuarantineCheckPause;
  disks_.WarnOfQuarantine();
}

void Node::Stop() {
  loop_.Stop();
  if (loop_thread_.joinable()) loop_thread_.join();
  parity_.Clear();
  scrubber_.reset();
  workers_.Stop();
  preparer_.Stop();
  background_.Stop();
  commits_.Flush();
  peer_source_.indexes().SetWhole(nullptr);
  readers_.Stop();
  sessions_.Clear();
  ranks_.Clear();
}

bool Node::StopSharedTiers(int64_t timeout_ms) {
  const bool copies = preparer_.StopCopies(timeout_ms);
  return shared_.StopWithin(timeout_ms) && copies;
}

bool Node::Flush(int64_t timeout_ms) {
  const Clock::TimePoint deadline = clock_.Now() + std::chrono::milliseconds(timeout_ms);
  const std::vector<RankLease> ranks = ranks_.All();
  for (const RankLease& rank : ranks) rank->slots.disk().StartFlush();
  bool flushed = true;
  for (const RankLease& rank : ranks)
    flushed = rank->slots.disk().AwaitFlushed(deadline) && flushed;
  return flushed;
}

std::map<std::string, DepartedJob> Node::Depart(int64_t grace_ms,
                                                const std::function<bool()>& interrupted) {
  const auto reaches = [this](const TierTraits& traits) {
    return IsShared(traits.tier) && options_.shared_tiers[traits.tier] != nullptr;
  };
  return Departure({.ranks = ranks_,
                    .link = link_,
                    .clock = clock_,
                    .shared_tiers = std::ranges::any_of(kTierTable, reaches),
                    .copies = [this] { return preparer_.OldestCopyMs() > 0; },
                    .interrupted = interrupted})
      .Run(grace_ms);
}

void Node::OnJobState(JobState state) {
  loop_.Post([this, state = std::move(state)] { job_service_.Apply(state); });
}

void Node::OnPrepareShard(PrepareShard prepare) {
  loop_.Post([this, prepare = std::move(prepare)] { preparer_.Apply(prepare); });
}

void Node::OnRemoveVersion(RemoveVersion remove) {
  loop_.Post([this, remove = std::move(remove)] { job_service_.Remove(remove); });
}

void Node::OnLife(const SeenLife& seen) {
  loop_.Post([this, seen] { job_service_.ApplyLife(seen); });
}

Scrubber::Counts Node::scrub_counts() const {
  return scrubber_ == nullptr ? Scrubber::Counts() : scrubber_->counts();
}

}  // namespace holdfast::agent
