#include "tests/simulation/coordinator_host.h"

#include <utility>

#include "coordinator/store/backup.h"
#include "coordinator/store/record_codec.h"
#include "tests/simulation/world.h"

namespace holdfast::simulation {
namespace {
using coord::MemoryStore;

/// The store of one coordinator process. Writes take time, may fail with unknown outcome, and are
/// lost when the process ends before they are applied.
class SimStore final : public coord::MetaStore {
 public:
  SimStore(World& world, coord::MemoryStoreData& data, std::weak_ptr<CoordinatorLife> life)
      : world_(world), life_(std::move(life)), store_(data, [this] { return NextFault(); }) {}

  Result<std::optional<std::string>> Get(std::string_view key) override { return store_.Get(key); }
  Result<std::vector<coord::KeyValue>> Range(std::string_view prefix) override {
    return store_.Range(prefix);
  }
  Result<bool> Commit(std::span<const coord::Compare> compares,
                      std::span<const coord::Mutation> mutations) override {
    auto done = store_.Commit(compares, mutations);
    const bool applied = done ? *done : fault_ == MemoryStore::Fault::kFailApplied;
    if (applied) world_.checker.OnStored(mutations);
    world_.clock.SleepFor(std::chrono::microseconds(20 + world_.random.Below(500)));
    return done;
  }

 private:
  MemoryStore::Fault NextFault() {
    fault_ = MemoryStore::Fault::kNone;
    world_.clock.SleepFor(std::chrono::microseconds(20 + world_.random.Below(1500)));
    const auto life = life_.lock();
    if (life == nullptr || life->dead) {
      fault_ = MemoryStore::Fault::kFailNotApplied;
    } else if (world_.coordinator.write_fails_one_in != 0 &&
               world_.random.OneIn(world_.coordinator.write_fails_one_in)) {
      fault_ = world_.random.OneIn(2) ? MemoryStore::Fault::kFailApplied
                                      : MemoryStore::Fault::kFailNotApplied;
    }
    return fault_;
  }

  World& world_;
  const std::weak_ptr<CoordinatorLife> life_;
  MemoryStore::Fault fault_ = MemoryStore::Fault::kNone;
  MemoryStore store_;
};
}  // namespace

Result<std::unique_ptr<coord::MetaStore>> CoordinatorHost::OpenStore(
    std::weak_ptr<CoordinatorLife> life) {
  return std::unique_ptr<coord::MetaStore>(std::make_unique<SimStore>(world_, data_, life));
}

void CoordinatorHost::Start() {
  auto life = std::make_shared<CoordinatorLife>();
  life->mailbox = std::make_unique<Mailbox>(world_.scheduler, life->process);
  // The applier's thread belongs to the process that starts it.
  bool started = false;
  world_.scheduler.Spawn(life->process, [&] {
    for (int attempt = 0; attempt < 20 && life->applier == nullptr; ++attempt) {
      auto applier = coord::Applier::Start(
          "sim", options, coord::SupervisorOptions{},
          [this, weak = std::weak_ptr(life)] { return OpenStore(weak); }, world_.clock);
      if (applier) life->applier = *std::move(applier);
    }
    started = true;
    world_.scheduler.Wake(&started, true);
  });
  while (!started) world_.scheduler.Wait(&started, Clock::TimePoint::max());
  if (life->applier == nullptr) {
    world_.checker.Fail("the coordinator does not start");
    life->mailbox->Close();
    return;
  }
  world_.Trace("coordinator starts, epoch " + std::to_string(life->applier->epoch().value));
  life_ = std::move(life);
}

void CoordinatorHost::Bury(std::shared_ptr<CoordinatorLife> life) {
  life->process.paused_until = {};
  ++world_.burials;
  world_.scheduler.Spawn(world_.burial, [this, life] {
    life->mailbox->Close();
    life->applier->Stop();
    --world_.burials;
  });
}

void CoordinatorHost::Crash() {
  if (life_ == nullptr) return;
  world_.Trace("coordinator ends");
  auto life = std::exchange(life_, nullptr);
  life->dead = true;
  for (const auto& stream : life->streams) {
    if (stream->closed || *stream->agent_dead) continue;
    const auto due = std::max(stream->last_arrival, world_.network.StreamArrival(stream->node));
    stream->agent->Post(due, [this, stream] {
      stream->ended = true;
      world_.scheduler.Wake(stream.get(), true);
    });
  }
  Bury(std::move(life));
}

void CoordinatorHost::Stop() { Crash(); }

void CoordinatorHost::LoseStore() {
  world_.Trace("the coordinator's store is lost");
  data_.clear();
  copy_.clear();
  world_.checker.OnStoreReplaced({});
}

void CoordinatorHost::RestoreCopy() {
  if (copy_.empty()) return LoseStore();
  world_.Trace("the coordinator's store is replaced by an older copy");
  data_ = copy_;
  // As BackUpStore does.
  auto epoch = coord::DecodeEpoch(data_.at(std::string(coord::kEpochKey)));
  data_[std::string(coord::kEpochKey)] =
      coord::EncodeEpoch(Epoch{epoch->value + coord::kBackupEpochs});
  data_[std::string(coord::kLifeKey)] = coord::EncodeLife(NewLife());
  world_.checker.OnStoreReplaced(data_);
}

}  // namespace holdfast::simulation
