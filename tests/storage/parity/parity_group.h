#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "storage/erasure/code.h"
#include "storage/format/checksum.h"
#include "storage/format/seal.h"
#include "storage/parity/parity_image.h"
#include "storage/volume/aligned_buffer.h"

namespace holdfast {

/// A parity group with all its shards in memory, made in the simplest way: one Encode per stripe.
struct ParityGroup {
  struct Shard {
    ShardSeal seal;
    AlignedBuffer memory;
    std::span<std::byte> image;
  };
  std::map<Rank, Shard> shards;  // of ranks and of parity
  std::vector<std::vector<Rank>> members;

  static ShardSeal SealOf(const ShardIdentity& identity, std::span<const std::byte> image) {
    ShardSeal seal;
    seal.identity = identity;
    seal.image_bytes = image.size();
    for (uint64_t at = 0; at < image.size(); at += kChunkBytes) {
      seal.chunk_crcs.push_back(
          Crc32c(image.subspan(at, std::min<uint64_t>(kChunkBytes, image.size() - at))));
    }
    seal.wall_nanos = 1'700'000'000'000'000'000;
    return seal;
  }
  void Add(const ShardIdentity& identity, std::span<const std::byte> image) {
    Shard shard;
    shard.memory = *AlignedBuffer::Allocate(std::max<uint64_t>(image.size(), 1));
    shard.image = shard.memory.span().first(image.size());
    std::copy(image.begin(), image.end(), shard.image.begin());
    shard.seal = SealOf(identity, shard.image);
    shards[identity.rank] = std::move(shard);
  }

  /// Adds the parity of the nodes from `first_number` on; `nodes` lists their ranks. Their shards
  /// were added before. Slots are `spare` bytes larger than their shards.
  void AddParity(const std::string& job, VersionId version, uint32_t world, uint32_t parity_count,
                 const std::vector<std::vector<Rank>>& nodes, uint32_t first_number = 0,
                 uint64_t spare = 8192) {
    std::vector<PlanMember> plan_members;
    for (uint32_t i = 0; i < nodes.size(); ++i) {
      PlanMember member;
      member.node = "n" + std::to_string(first_number + i);
      member.number = first_number + i;
      for (const Rank rank : nodes[i]) {
        const uint64_t bytes = shards.at(rank).image.size() + spare;
        member.ranks.push_back({rank, (bytes + 4095) / 4096 * 4096});
      }
      plan_members.push_back(std::move(member));
    }
    auto plan = GroupPlan::Make(std::move(plan_members), parity_count);
    ASSERT_TRUE(plan.has_value()) << plan.error().ToString();
    const StripeLayout& layout = plan->layout();
    auto code = ErasureCode::Make(layout.data_count(), parity_count);
    ASSERT_TRUE(code.has_value());
    std::vector<ShardSeal> seals;
    std::vector<std::vector<std::byte>> node_images;
    for (uint32_t i = 0; i < nodes.size(); ++i) {
      std::vector<std::byte> image(layout.data_count() * layout.segment_bytes());
      for (const Rank rank : nodes[i]) {
        const Shard& shard = shards.at(rank);
        std::copy(shard.image.begin(), shard.image.end(),
                  image.begin() + static_cast<ptrdiff_t>(plan->RankBegin(i, rank)));
        seals.push_back(shard.seal);
      }
      node_images.push_back(std::move(image));
    }
    for (uint32_t i = 0; i < nodes.size(); ++i) {
      const ShardIdentity identity{job, version, ParityRank(first_number + i), world};
      auto image = ParityImage::Make(*plan, i, identity);
      ASSERT_TRUE(image.has_value()) << image.error().ToString();
      std::vector<std::byte> bytes(image->image_bytes());
      for (uint32_t row = 0; row < parity_count; ++row) {
        const uint32_t stripe = ParityImage::StripeOfRow(layout, i, row);
        std::vector<std::span<const std::byte>> data;
        for (uint32_t index = 0; index < layout.data_count(); ++index) {
          const StripeMember part = layout.DataMember(stripe, index);
          data.push_back(
              std::span(node_images[part.node])
                  .subspan(part.segment * layout.segment_bytes(), layout.segment_bytes()));
        }
        std::vector<std::vector<std::byte>> rows(parity_count,
                                                 std::vector<std::byte>(layout.segment_bytes()));
        std::vector<std::span<std::byte>> out(rows.begin(), rows.end());
        ASSERT_TRUE((*code)->Encode(data, out).ok());
        std::copy(rows[row].begin(), rows[row].end(),
                  bytes.begin() + static_cast<ptrdiff_t>(ParityImage::RowBegin(layout, row)));
      }
      ASSERT_TRUE(image->Finish(bytes, seals).ok());
      Add(identity, bytes);
      std::vector<Rank> member = nodes[i];
      member.push_back(identity.rank);
      members.push_back(std::move(member));
    }
  }
};

}  // namespace holdfast
