#include "agent/parity/rebuild.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
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
// A member that sends nothing for so long is given up, and this attempt with it: whoever ordered it
// orders it again, from those who are left by then.
constexpr std::chrono::seconds kSilence(10);

Clock::TimePoint Soon(Clock::TimePoint deadline) {
  return std::min(deadline, Clock::Real().Now() + kSilence);
}

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

/// Everything that a parity shard has besides header, seals and plan, cut so that all who can
/// decode have something to do.
std::vector<Share> SharesOfParity(const GroupPlan& plan, uint32_t position, size_t decoders) {
  const StripeLayout& layout = plan.layout();
  std::vector<Share> shares;
  for (uint32_t parity = 0; parity < layout.parity_count(); ++parity) {
    const uint32_t stripe = ParityImage::StripeOfRow(layout, position, parity);
    const uint64_t bytes = layout.ParityBytes(stripe);
    const uint64_t units = (bytes + kStripeUnitBytes - 1) / kStripeUnitBytes;
    const uint64_t share = (units + decoders - 1) / decoders * kStripeUnitBytes;
    for (uint64_t at = 0; at < bytes; at += share) {
      shares.push_back({stripe, layout.data_count() + parity, at, std::min(share, bytes - at),
                        ParityImage::RowBegin(layout, parity) + at});
    }
  }
  return shares;
}

/// Whoever is there and has something of the version can decode.
std::vector<uint32_t> Decoders(const GroupAccess& access) {
  std::vector<uint32_t> decoders;
  for (uint32_t position = 0; position < access.plan.members().size(); ++position) {
    const PlanMember& member = access.plan.members()[position];
    const bool reachable = member.node == access.self || !member.address.empty();
    if (reachable && (member.has_data || member.has_parity)) decoders.push_back(position);
  }
  return decoders;
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
    HOLDFAST_ASSIGN_OR_RETURN(const size_t got, stream->Read(unit, Soon(deadline)));
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

/// All shares at once, a few at a time; the first error ends the others.
Status FetchShares(const GroupAccess& access, const std::vector<Share>& shares,
                   const std::vector<uint32_t>& decoders, std::span<std::byte> image,
                   const std::function<void(uint64_t)>& progress, Clock::TimePoint deadline) {
  const std::string group = access.plan.ToJson(/*as_of_now=*/true);
  std::atomic<size_t> next{0};
  const auto fetch = [&]() -> Status {
    for (size_t i = next++; i < shares.size(); i = next++) {
      const uint32_t decoder = decoders[i % decoders.size()];
      Status status = FetchShare(access, shares[i], decoder, group, image, progress, deadline);
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
  return status;
}

/// The list of seals that a member has in its parity shard.
Result<std::vector<ShardSeal>> SealsAt(const GroupAccess& access, uint32_t position,
                                       Clock::TimePoint deadline) {
  const Rank parity = ParityRank(access.plan.members()[position].number);
  HOLDFAST_ASSIGN_OR_RETURN(
      const ParityImage image,
      ParityImage::Make(access.plan, position, {access.job, access.version, parity, kWorldMax}));
  PeerRequest request;
  request.kind = PeerRequestKind::kShard;
  request.rank = parity;
  request.offset = image.seals_begin();
  HOLDFAST_ASSIGN_OR_RETURN(const auto list, ReadWhole(access, position, std::move(request),
                                                       image.seals_bytes(), Soon(deadline)));
  HOLDFAST_ASSIGN_OR_RETURN(std::vector<ShardSeal> seals, ParseSeals(list));
  for (const ShardSeal& seal : seals) {
    const ShardIdentity& of = seal.identity;
    if (of.job == access.job && of.version == access.version) continue;
    return Fail(DataLossError("a parity shard has the seal of " + ToString(of.key())));
  }
  return seals;
}

/// The seals of the group, from a member's parity.
Result<std::vector<ShardSeal>> SealsFromParity(const GroupAccess& access,
                                               Clock::TimePoint deadline) {
  Status last = DataLossError("no member of the group has its parity shard");
  for (uint32_t position = 0; position < access.plan.members().size(); ++position) {
    if (!access.plan.members()[position].has_parity) continue;
    auto seals = SealsAt(access, position, deadline);
    if (seals) return seals;
    last = seals.error();
  }
  return Fail(last);
}

}  // namespace

Result<ShardSeal> FetchSeal(const GroupAccess& access, Rank rank, Clock::TimePoint deadline) {
  auto seals = SealsFromParity(access, deadline);
  if (!seals) return Fail(seals.error().WithContext("the seal of " + ShardName(rank)));
  for (ShardSeal& seal : *seals) {
    if (seal.identity.rank == rank) return std::move(seal);
  }
  return Fail(DataLossError("the group's parity does not know " + ShardName(rank)));
}

Status RebuildShard(const GroupAccess& access, const ShardSeal& seal, std::span<std::byte> image,
                    const std::function<void(uint64_t)>& progress, Clock::TimePoint deadline) {
  const Rank rank = seal.identity.rank;
  const auto position = access.plan.PositionOf(rank);
  const std::vector<uint32_t> decoders = Decoders(access);
  if (!position || decoders.empty() || image.size() < seal.image_bytes) {
    return InvalidArgumentError("the group cannot decode " + ShardName(rank));
  }
  const std::vector<Share> shares = SharesOf(access.plan, *position, rank, seal.image_bytes);
  HOLDFAST_RETURN_IF_ERROR(FetchShares(access, shares, decoders, image, progress, deadline));
  const uint64_t bad = FirstBadChunk(image.first(seal.image_bytes), seal.chunk_crcs);
  if (bad == kNoChunk) return Status::Ok();
  return DataLossError(
      fmt::format("{} as decoded from its group: chunk {} does not match its checksum",
                  ToString(seal.identity.key()), bad));
}

Result<ShardSeal> RebuildParity(const GroupAccess& access, uint32_t position, uint32_t world,
                                std::span<std::byte> image,
                                const std::function<void(uint64_t)>& progress, Clock& clock,
                                Clock::TimePoint deadline) {
  const std::vector<uint32_t> decoders = Decoders(access);
  if (position >= access.plan.members().size() || decoders.empty()) {
    return Fail(InvalidArgumentError("the group cannot decode this parity"));
  }
  ShardSeal seal;
  seal.identity = {access.job, access.version, ParityRank(access.plan.members()[position].number),
                   world};
  HOLDFAST_ASSIGN_OR_RETURN(const ParityImage parity,
                            ParityImage::Make(access.plan, position, seal.identity));
  if (image.size() < parity.image_bytes()) {
    return Fail(InternalError("the slot is too small for the parity image"));
  }
  auto seals = SealsFromParity(access, deadline);
  // Without any parity left all data is there, and with it its seals.
  if (!seals) seals = CollectSeals(access, Soon(deadline));
  if (!seals) return Fail(seals.error());
  const std::vector<Share> shares = SharesOfParity(access.plan, position, decoders.size());
  std::memset(image.data(), 0, parity.image_bytes());
  HOLDFAST_RETURN_IF_ERROR(FetchShares(access, shares, decoders, image, progress, deadline));
  HOLDFAST_RETURN_IF_ERROR(parity.Finish(image, *seals));
  seal.image_bytes = parity.image_bytes();
  seal.chunk_crcs = ChunkCrcs(image.first(parity.image_bytes()));
  seal.wall_nanos = clock.WallNanos();
  return seal;
}

}  // namespace holdfast::agent
