#include "bench/state_load.h"

#include <variant>

namespace holdfast::bench {
namespace {
using coord::PutJob;
using coord::PutLineage;
using coord::PutVersion;

constexpr char kJob[] = "load";
constexpr uint64_t kBatch = 256;      // events whose effects are stored in one write
constexpr uint64_t kBytes = 1 << 20;  // of a slot and of a shard
}  // namespace

StateLoad::StateLoad(uint32_t nodes, uint32_t ranks_per_node, bool parity)
    : nodes_(nodes),
      ranks_per_node_(ranks_per_node),
      parity_(parity),
      ranks_(nodes),
      held_(nodes),
      orders_(nodes),
      member_numbers_(nodes) {
  Restart();
}

void StateLoad::Restart() {
  ++options_.epoch.value;
  coord::Records records;
  if (!job_.job.empty()) records.jobs.push_back(job_);
  for (const auto& [incarnation, record] : lineages_) records.lineages.push_back(record);
  for (const auto& [id, record] : versions_) records.versions.push_back(record);
  state_ = std::make_unique<coord::State>(coord::State::Load(options_, records, at_).value());
}

void StateLoad::Apply(const coord::Event& event) {
  for (coord::Effect& effect : state_->Apply(event, at_)) Take(std::move(effect));
  if (++events_ % kBatch != 0) return;
  for (coord::Effect& effect : state_->FinishBatch()) Take(std::move(effect));
}

void StateLoad::Take(coord::Effect effect) {
  if (auto* job = std::get_if<PutJob>(&effect)) {
    job_ = std::move(job->record);
  } else if (auto* lineage = std::get_if<PutLineage>(&effect)) {
    coord::LineageRecord& record = lineages_[lineage->record.incarnation];
    record = std::move(lineage->record);
    uint32_t number = 0;
    for (const coord::PlannedGroup& group : record.peers) {
      for (const coord::PlannedMember& member : group.members) {
        member_numbers_[member.ranks.front().rank.value / ranks_per_node_] = number++;
      }
    }
  } else if (auto* version = std::get_if<PutVersion>(&effect)) {
    versions_[version->record.version] = std::move(version->record);
  } else if (const auto* erased = std::get_if<coord::EraseVersion>(&effect)) {
    versions_.erase(erased->version);
  } else if (const auto* reply = std::get_if<coord::Reply>(&effect)) {
    if (!reply->outcome.ok() || reply->incarnation.value == 0) return;
    ++successes_;
    incarnation_ = reply->incarnation;
  } else if (auto* send = std::get_if<coord::Send>(&effect)) {
    if (auto* order = std::get_if<PrepareShard>(&send->directive)) {
      orders_[attached_.at(send->attach)].push_back(std::move(*order));
    }
  }
}

void StateLoad::Attach() {
  attached_.clear();
  for (uint32_t node = 0; node < nodes_; ++node) {
    coord::NodeAttached event;
    event.attach = ++next_;
    event.node = NameOf(node);
    event.agent_start = 1;
    event.data_address = "unix:/" + event.node;
    event.peer_address = "unix:/" + event.node + ".peer";
    event.no_parity = !parity_;
    event.replicas = held_[node];
    event.ranks = ranks_[node];
    event.health.disk_free_percent = 50;
    attached_[event.attach] = node;
    Apply(event);
  }
}

void StateLoad::Join(const std::string& run) {
  for (uint32_t rank = 0; rank < world(); ++rank) {
    coord::RankJoined event{{kJob, run, Rank{rank}, world(), 7, kBytes, {}}};
    event.request = ++next_;
    event.node = NameOf(rank / ranks_per_node_);
    event.agent_start = 1;
    Apply(event);
  }
}

void StateLoad::Report(uint32_t node, std::vector<StoredReplica> replicas,
                       std::vector<Prepared> prepared) {
  coord::NodeReported event;
  event.request = ++next_;
  event.node = NameOf(node);
  event.agent_start = 1;
  event.epoch = options_.epoch;
  event.replicas = std::move(replicas);
  event.prepared = std::move(prepared);
  event.ranks = ranks_[node];
  event.health.disk_free_percent = 50;
  Apply(event);
}

void StateLoad::Add(uint32_t node, VersionId version, Rank rank, Tier tier,
                    std::vector<StoredReplica>& replicas) {
  const uint64_t digest = version.step.value << 40 | rank.value;
  replicas.push_back({{kJob, version, rank, world()}, tier, digest, kBytes});
  held_[node].push_back(replicas.back());
}

void StateLoad::Save(uint64_t step) {
  const VersionId version{incarnation_, Step{step}};
  for (std::vector<StoredReplica>& held : held_) held.clear();  // only the newest is kept
  for (const Tier tier : {Tier::kMemory, Tier::kDisk}) {
    for (uint32_t node = 0; node < nodes_; ++node) {
      std::vector<StoredReplica> replicas;
      for (uint32_t i = 0; i < ranks_per_node_; ++i) {
        Add(node, version, Rank{node * ranks_per_node_ + i}, tier, replicas);
      }
      Report(node, std::move(replicas));
    }
    for (uint32_t node = 0; parity_ && node < nodes_; ++node) {
      std::vector<StoredReplica> replicas;
      Add(node, version, ParityRank(member_numbers_[node]), tier, replicas);
      Report(node, std::move(replicas));
    }
  }
}

void StateLoad::Prepare() {
  for (uint32_t node = 0; node < nodes_; ++node) {
    std::vector<Prepared> prepared;
    for (const PrepareShard& order : std::exchange(orders_[node], {})) {
      if (order.request) prepared.push_back({*order.request, Status::Ok()});
    }
    Report(node, {}, std::move(prepared));
  }
}

void StateLoad::RequestRestore() {
  for (uint32_t rank = 0; rank < world(); ++rank) {
    coord::RestoreRequested event{{kJob, incarnation_, Rank{rank}, {}, 0, false}};
    event.request = ++next_;
    event.node = NameOf(rank / ranks_per_node_);
    Apply(event);
  }
}

void StateLoad::Run() {
  for (uint32_t node = 0; node < nodes_; ++node) {
    ranks_[node].clear();
    for (uint32_t i = 0; i < ranks_per_node_; ++i) {
      ranks_[node].push_back({kJob, incarnation_, Rank{node * ranks_per_node_ + i}});
    }
    Report(node, {});
  }
}

void StateLoad::End() {
  for (uint32_t node = 0; node < nodes_; ++node) {
    ranks_[node].clear();
    Report(node, {});
  }
}

void StateLoad::Lose() {
  for (uint32_t node = 0; node < nodes_; ++node) Apply(coord::NodeLost{NameOf(node)});
}

void StateLoad::Pass(std::chrono::milliseconds time) {
  at_.now += time;
  Apply(coord::Tick{});
}

}  // namespace holdfast::bench
