#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/pipeline/rank_memory.h"
#include "agent/pipeline/save_service.h"
#include "storage/format/checksum.h"
#include "tests/agent/pipeline/harness.h"

namespace holdfast::agent {

/// The lower parts of a node, without its threads and sockets: a real arena with its keeper, a
/// volume on a simulated disk, the registry of ranks and their memory.
class PartsTest : public testing::Test {
 protected:
  static constexpr uint64_t kSlotBytes = 2 << 20;

  void SetUp() override {
    std::vector<std::unique_ptr<Directory>> dirs;
    dirs.push_back(disk_.Open("data"));
    auto volume = Volume::Open(std::move(dirs), {"test", "node-0", {}}, Clock::Real());
    ASSERT_TRUE(volume) << volume.error().ToString();
    volume_ = *std::move(volume);
    ArenaOptions options = limits_;
    options.budget_bytes = 32 << 20;
    options.run_dir = dir_;
    const char* bin = ::getenv("HOLDFAST_BIN_DIR");
    options.keeper_binary = std::string(bin != nullptr ? bin : ".") + "/holdfast-keeper";
    auto arena = Arena::Open(options, Clock::Real());
    ASSERT_TRUE(arena) << arena.error().ToString();
    arena_ = *std::move(arena);
    ranks_ =
        std::make_unique<RankRegistry>(RankOptions{}, *arena_, *volume_, checksums_, Clock::Real());
    ranks_->SetEvents(events_);
    memory_ = std::make_unique<RankMemory>(*ranks_, *arena_, link_, nullptr);
  }
  void TearDown() override {
    memory_.reset();
    ranks_.reset();
    arena_.reset();
    KillKeeperIn(dir_);
    RemoveTree(dir_);
  }

  Result<RankLease> Reserve(const std::string& job, Rank rank, uint64_t slot_bytes = kSlotBytes) {
    return memory_->Reserve({job, rank, 0}, /*slots=*/2, slot_bytes, /*world=*/0);
  }
  /// Puts a sealed and verified shard into the rank's memory.
  ShardKey Put(const RankLease& rank, VersionId version) {
    const SegmentOwner& owner = rank->segment.owner();
    const uint32_t world = IsParity(owner.rank) ? 1 : owner.rank.value + 1;
    const ShardIdentity identity{owner.job, version, owner.rank, world};
    const std::vector<std::byte> image = MakeImage(identity, 1000);
    std::vector<FreedSlot> freed;
    const auto slot = rank->slots.fills().LeaseToFill(version, world, image.size(), &freed);
    EXPECT_TRUE(slot);
    std::memcpy(rank->segment.slot(*slot).data(), image.data(), image.size());
    ShardSeal seal;
    seal.identity = identity;
    seal.image_bytes = image.size();
    seal.chunk_crcs = ChunkCrcs(image);
    EXPECT_TRUE(rank->slots.fills().SealRestored(*slot, seal).ok());
    return identity.key();
  }

  ArenaOptions limits_;  // set by derived classes
  const std::string dir_ = MakeTempDir();
  SimDisk disk_;
  FakeCoordinator link_;
  Warnings warnings_{link_};
  LoopQueue loop_;
  SessionTable sessions_;
  SaveService events_{link_, warnings_, loop_, sessions_, Clock::Real()};
  std::unique_ptr<Volume> volume_;
  std::unique_ptr<Arena> arena_;
  ChecksumPool checksums_{1};
  std::unique_ptr<RankRegistry> ranks_;
  std::unique_ptr<RankMemory> memory_;
};

}  // namespace holdfast::agent
