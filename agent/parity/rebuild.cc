#include "agent/parity/rebuild.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "base/thread.h"
#include "storage/format/checksum.h"
#include "storage/parity/parity_image.h"

namespace holdfast::agent {
namespace {

// Number of shares that are fetched concurrently, each from a different decoder.
constexpr size_t kFetchersMax = 4;
// A read from a member that sends nothing for this long fails. If the rebuild fails as a result,
// the coordinator requests another attempt with the remaining members.
constexpr std::chrono::seconds kReadTimeout(10);

Clock::TimePoint ReadDeadline(const GroupAccess& access, Clock::TimePoint deadline) {
  return std::min(deadline, access.clock.Now() + kReadTimeout);
}

/// A part of a requested range that is within one stripe.
struct Share {
  uint32_t stripe = 0;
  uint32_t index = 0;
  uint64_t offset = 0;  // in the segment
  std::span<std::byte> into;
};

/// Adds the shares of a range of a rank's shard.
void AddShares(const GroupPlan& plan, uint32_t position, Rank rank, const WantedRange& range,
               std::vector<Share>& shares) {
  const StripeLayout& layout = plan.layout();
  const uint64_t begin = plan.RankBegin(position, rank) + range.begin;
  for (uint64_t done = 0; done < range.into.size();) {
    const auto segment = static_cast<uint32_t>((begin + done) / layout.segment_bytes());
    const uint64_t offset = (begin + done) % layout.segment_bytes();
    const uint64_t bytes = std::min(layout.segment_bytes() - offset, range.into.size() - done);
    const uint32_t stripe = layout.StripeOf(position, segment);
    shares.push_back(
        {stripe, layout.IndexOf(stripe, position), offset, range.into.subspan(done, bytes)});
    done += bytes;
  }
}

/// Adds the shares of a range of a parity shard: only its rows, split so that every decoder gets a
/// share.
void AddRowShares(const GroupPlan& plan, uint32_t position, size_t decoders,
                  const WantedRange& range, std::vector<Share>& shares) {
  const StripeLayout& layout = plan.layout();
  for (uint32_t parity = 0; parity < layout.parity_count(); ++parity) {
    const uint32_t stripe = ParityImage::StripeOfRow(layout, position, parity);
    const uint64_t row = ParityImage::RowBegin(layout, parity);
    const uint64_t begin = std::max(row, range.begin);
    const uint64_t end =
        std::min(row + layout.ParityBytes(stripe), range.begin + range.into.size());
    if (begin >= end) continue;
    const uint64_t units = (end - begin + kStripeUnitBytes - 1) / kStripeUnitBytes;
    const uint64_t share = (units + decoders - 1) / decoders * kStripeUnitBytes;
    for (uint64_t at = begin; at < end; at += share) {
      shares.push_back({stripe, layout.data_count() + parity, at - row,
                        range.into.subspan(at - range.begin, std::min(share, end - at))});
    }
  }
}

/// Returns the members that can decode: reachable ones with data or parity of the version.
std::vector<uint32_t> Decoders(const GroupAccess& access) {
  std::vector<uint32_t> decoders;
  for (uint32_t position = 0; position < access.plan.members().size(); ++position) {
    const PlanMember& member = access.plan.members()[position];
    const bool reachable = member.node == access.self || !member.address.empty();
    if (reachable && (member.has_data || member.has_parity)) decoders.push_back(position);
  }
  return decoders;
}

/// Fetches shares from the decoders. Thread-safe.
class Fetch {
 public:
  Fetch(const GroupAccess& access, const std::vector<uint32_t>& decoders,
        const std::function<void(uint64_t)>& progress, Clock::TimePoint deadline)
      : access_(access),
        decoders_(decoders),
        group_(access.plan.ToJson(/*as_of_now=*/true)),
        progress_(progress),
        deadline_(deadline),
        unresponsive_(decoders.size()) {}

  /// Fetches all shares, a few concurrently. The first share that no member can decode cancels the
  /// rest.
  Status All(const std::vector<Share>& shares) {
    std::atomic<size_t> next{0};
    const auto fetch = [&]() -> Status {
      for (size_t i = next++; i < shares.size(); i = next++) {
        Status status = One(shares[i], i % decoders_.size());
        if (status.ok()) continue;
        access_.cancellation.Cancel(status);
        return status;
      }
      return Status::Ok();
    };
    std::vector<Thread> fetchers;
    for (size_t i = 1; i < std::min(kFetchersMax, shares.size()); ++i) {
      fetchers.emplace_back([&fetch] { std::ignore = fetch(); });
    }
    Status status = fetch();
    for (Thread& fetcher : fetchers) fetcher.join();
    HOLDFAST_RETURN_IF_ERROR(access_.cancellation.status());
    return status;
  }

 private:
  /// Fetches a share from its decoder. If that fails, the next decoder continues at the same
  /// position.
  Status One(const Share& share, size_t first) {
    size_t done = 0;
    Status last = UnavailableError("no member of the group answers");
    for (size_t i = 0; i < decoders_.size(); ++i) {
      const size_t decoder = (first + i) % decoders_.size();
      if (unresponsive_[decoder].load()) continue;
      last = From(decoder, share, done);
      if (last.ok()) return last;
      HOLDFAST_RETURN_IF_ERROR(access_.cancellation.status());
      const bool unresponsive =
          last.code() == ErrorCode::kUnavailable || last.code() == ErrorCode::kDeadlineExceeded;
      if (unresponsive) unresponsive_[decoder].store(true);
    }
    return last;
  }

  Status From(size_t decoder, const Share& share, size_t& done) {
    PeerRequest request;
    request.kind = PeerRequestKind::kDecode;
    request.stripe = share.stripe;
    request.index = share.index;
    request.offset = share.offset + done;
    request.bytes = share.into.size() - done;
    request.group = group_;
    const uint32_t position = decoders_[decoder];
    HOLDFAST_ASSIGN_OR_RETURN(auto stream, access_.Open(position, std::move(request), deadline_));
    std::vector<std::byte> unit(kStripeUnitBytes);
    while (done < share.into.size()) {
      HOLDFAST_ASSIGN_OR_RETURN(const size_t got,
                                stream->Read(unit, ReadDeadline(access_, deadline_)));
      if (got == 0 || got > share.into.size() - done) {
        return DataLossError(fmt::format("node {} sent {} of {} decoded bytes",
                                         access_.plan.members()[position].node, done,
                                         share.into.size()));
      }
      std::memcpy(share.into.data() + done, unit.data(), got);
      done += got;
      progress_(got);
    }
    return Status::Ok();
  }

  const GroupAccess& access_;
  const std::vector<uint32_t>& decoders_;
  const std::string group_;
  const std::function<void(uint64_t)>& progress_;
  const Clock::TimePoint deadline_;
  std::vector<std::atomic<bool>> unresponsive_;  // decoders that failed to answer a request
};

/// Returns the seals in a member's parity shard.
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
  HOLDFAST_ASSIGN_OR_RETURN(const auto list,
                            ReadObject(access, position, std::move(request), image.seals_bytes(),
                                       ReadDeadline(access, deadline)));
  HOLDFAST_ASSIGN_OR_RETURN(std::vector<ShardSeal> seals, ParseSeals(list));
  for (const ShardSeal& seal : seals) {
    const ShardIdentity& of = seal.identity;
    if (of.job == access.job && of.version == access.version) continue;
    return Fail(DataLossError("a parity shard has the seal of " + ToString(of.key())));
  }
  return seals;
}

/// Returns the seals of the group from the first readable parity shard.
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
  return Fail(DataLossError("the group's parity has no seal of " + ShardName(rank)));
}

Status DecodeRanges(const GroupAccess& access, const ShardIdentity& identity,
                    std::span<const WantedRange> ranges,
                    const std::function<void(uint64_t)>& progress, Clock::TimePoint deadline) {
  const GroupPlan& plan = access.plan;
  const Rank rank = identity.rank;
  const auto position =
      IsParity(rank) ? plan.PositionOfNumber(ParityNode(rank)) : plan.PositionOf(rank);
  const std::vector<uint32_t> decoders = Decoders(access);
  if (!position || decoders.empty()) {
    return InvalidArgumentError("the group cannot decode " + ShardName(rank));
  }
  std::vector<Share> shares;
  for (const WantedRange& range : ranges) {
    if (!IsParity(rank)) {
      AddShares(plan, *position, rank, range, shares);
      continue;
    }
    std::memset(range.into.data(), 0, range.into.size());
    AddRowShares(plan, *position, decoders.size(), range, shares);
  }
  HOLDFAST_RETURN_IF_ERROR(Fetch(access, decoders, progress, deadline).All(shares));
  if (!IsParity(rank)) return Status::Ok();
  HOLDFAST_ASSIGN_OR_RETURN(const ParityImage image, ParityImage::Make(plan, *position, identity));
  const bool rows_only = std::all_of(ranges.begin(), ranges.end(), [&](const WantedRange& range) {
    return range.begin + range.into.size() <= image.seals_begin();
  });
  Result<std::vector<ShardSeal>> seals = std::vector<ShardSeal>();
  if (!rows_only) seals = SealsFromParity(access, deadline);
  // If no parity shard is readable, the bytes were decoded from data shards only. These have seals.
  if (!seals) seals = CollectSeals(access, ReadDeadline(access, deadline));
  if (!seals) return seals.error();
  for (const WantedRange& range : ranges) {
    HOLDFAST_RETURN_IF_ERROR(image.FinishRange(range.begin, range.into, *seals));
  }
  return Status::Ok();
}

Result<ShardSeal> RebuildParity(const GroupAccess& access, uint32_t position, uint32_t world,
                                std::span<std::byte> image,
                                const std::function<void(uint64_t)>& progress, Clock& clock,
                                Clock::TimePoint deadline) {
  if (position >= access.plan.members().size()) {
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
  const WantedRange full_range{0, image.first(parity.image_bytes())};
  HOLDFAST_RETURN_IF_ERROR(
      DecodeRanges(access, seal.identity, {&full_range, 1}, progress, deadline));
  seal.image_bytes = parity.image_bytes();
  seal.chunk_crcs = ChunkCrcs(full_range.into);
  seal.wall_nanos = clock.WallNanos();
  return seal;
}

}  // namespace holdfast::agent
