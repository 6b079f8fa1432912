#include "agent/parity/rebuild.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "agent/parity/parity_image.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {

// Segments that are fetched at the same time, each from another decoder.
constexpr size_t kFetchersMax = 4;

/// A part of a lost shard that lies in one stripe.
struct Share {
  uint32_t stripe = 0;
  uint32_t index = 0;
  uint64_t offset = 0;  // in the segment
  uint64_t bytes = 0;
  uint64_t image_offset = 0;
};

std::vector<Share> SharesOf(const GroupPlan& plan, uint32_t position, Rank rank,
                            uint64_t image_bytes) {
  const StripeLayout& layout = plan.layout();
  const uint64_t begin = plan.RankBegin(position, rank);
  std::vector<Share> shares;
  for (uint64_t at = 0; at < image_bytes;) {
    const uint64_t node_at = begin + at;
    const auto segment = static_cast<uint32_t>(node_at / layout.segment_bytes());
    const uint64_t offset = node_at % layout.segment_bytes();
    const uint64_t bytes = std::min(layout.segment_bytes() - offset, image_bytes - at);
    const uint32_t stripe = layout.StripeOf(position, segment);
    shares.push_back({stripe, layout.IndexOf(stripe, position), offset, bytes, at});
    at += bytes;
  }
  return shares;
}

std::vector<uint32_t> PresentMembers(const GroupPlan& plan) {
  std::vector<uint32_t> present;
  for (uint32_t position = 0; position < plan.members().size(); ++position) {
    if (plan.members()[position].present) present.push_back(position);
  }
  return present;
}

Status FetchShare(const GroupAccess& access, const Share& share, uint32_t decoder,
                  const std::string& group, std::span<std::byte> image,
                  const std::function<void(uint64_t)>& progress, Clock::TimePoint deadline) {
  PeerRequest request;
  request.kind = PeerRequestKind::kDecode;
  request.stripe = share.stripe;
  request.index = share.index;
  request.offset = share.offset;
  request.bytes = share.bytes;
  request.group = group;
  HOLDFAST_ASSIGN_OR_RETURN(auto stream, access.Open(decoder, std::move(request), deadline));
  std::vector<std::byte> unit(kStripeUnitBytes);
  for (uint64_t done = 0; done < share.bytes;) {
    HOLDFAST_ASSIGN_OR_RETURN(const size_t got, stream->Read(unit, deadline));
    if (got == 0 || got > share.bytes - done) {
      return DataLossError(fmt::format("node {} sent {} of {} decoded bytes",
                                       access.plan.members()[decoder].node, done, share.bytes));
    }
    std::memcpy(image.data() + share.image_offset + done, unit.data(), got);
    done += got;
    progress(got);
  }
  return Status::Ok();
}

}  // namespace

Result<ShardSeal> FetchSeal(const GroupAccess& access, Rank rank, Clock::TimePoint deadline) {
  Status last = DataLossError("no member of the group has its parity shard");
  for (uint32_t position : PresentMembers(access.plan)) {
    const Rank parity = ParityRank(access.plan.members()[position].number);
    HOLDFAST_ASSIGN_OR_RETURN(
        const ParityImage image,
        ParityImage::Make(access.plan, position, {access.job, access.version, parity, kWorldMax}));
    PeerRequest request;
    request.kind = PeerRequestKind::kShard;
    request.rank = parity;
    request.offset = image.seals_begin();
    auto seals = ReadWhole(access, position, std::move(request), image.seals_bytes(), deadline);
    auto seal = seals ? FindSeal(*seals, rank) : Result<ShardSeal>(Fail(seals.error()));
    if (seal && seal->identity.key() == ShardKey{access.job, access.version, rank}) return seal;
    last = seal ? DataLossError("a parity shard has the seals of another version") : seal.error();
  }
  return Fail(last.WithContext("the seal of " + ShardName(rank)));
}

Status RebuildShard(const GroupAccess& access, const ShardSeal& seal, std::span<std::byte> image,
                    const std::function<void(uint64_t)>& progress, Clock::TimePoint deadline) {
  const Rank rank = seal.identity.rank;
  const auto position = access.plan.PositionOf(rank);
  const std::vector<uint32_t> present = PresentMembers(access.plan);
  if (!position || present.empty() || image.size() < seal.image_bytes) {
    return InvalidArgumentError("the group cannot decode " + ShardName(rank));
  }
  const std::vector<Share> shares = SharesOf(access.plan, *position, rank, seal.image_bytes);
  const std::string group = access.plan.ToJson(/*as_of_now=*/true);
  std::atomic<size_t> next{0};
  const auto fetch = [&]() -> Status {
    for (size_t i = next++; i < shares.size(); i = next++) {
      const uint32_t decoder = present[i % present.size()];
      const Status status =
          FetchShare(access, shares[i], decoder, group, image, progress, deadline);
      if (status.ok()) continue;
      access.cancellation.Cancel(status);
      return status;
    }
    return Status::Ok();
  };
  std::vector<std::thread> fetchers;
  for (size_t i = 1; i < std::min(kFetchersMax, shares.size()); ++i) {
    fetchers.emplace_back([&fetch] { std::ignore = fetch(); });
  }
  Status status = fetch();
  for (std::thread& fetcher : fetchers) fetcher.join();
  HOLDFAST_RETURN_IF_ERROR(access.cancellation.status());
  HOLDFAST_RETURN_IF_ERROR(status);
  const uint64_t bad = FirstBadChunk(image.first(seal.image_bytes), seal.chunk_crcs);
  if (bad == kNoChunk) return Status::Ok();
  return DataLossError(
      fmt::format("{} as decoded from its group: chunk {} does not match its "
                  "checksum",
                  ToString(seal.identity.key()), bad));
}

}  // namespace holdfast::agent
