#include "agent/parity/builder.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/crash_point.h"
#include "base/thread.h"
#include "storage/erasure/code.h"
#include "storage/parity/parity_image.h"

namespace holdfast::agent {
namespace {

/// Builds the rows of one member.
class Builder {
 public:
  Builder(const GroupAccess& access, RowExchange& rows, uint32_t position,
          std::span<std::byte> slot, Clock::TimePoint deadline)
      : access_(access),
        layout_(access.plan.layout()),
        rows_(rows),
        position_(position),
        slot_(slot),
        deadline_(deadline) {}

  /// Builds all rows; the first error ends the building of the others.
  Status MakeRows() {
    std::vector<Status> outcomes(layout_.parity_count());
    std::vector<Thread> followers;
    for (uint32_t parity = 1; parity < layout_.parity_count(); ++parity) {
      followers.emplace_back([this, parity, &outcomes] { outcomes[parity] = End(Follow(parity)); });
    }
    outcomes[0] = End(Lead());
    for (Thread& follower : followers) follower.join();
    // The cancellation has the first error; the other outcomes are only Cancelled.
    HOLDFAST_RETURN_IF_ERROR(access_.cancellation.status());
    for (const Status& outcome : outcomes) HOLDFAST_RETURN_IF_ERROR(outcome);
    return Status::Ok();
  }

 private:
  Status End(const Status& outcome) {
    if (!outcome.ok()) {
      access_.cancellation.Cancel(outcome);
      rows_.Drop(access_.job, access_.version, outcome);
    }
    return outcome;
  }

  std::span<std::byte> Row(uint32_t parity) {
    return slot_.subspan(ParityImage::RowBegin(layout_, parity), layout_.segment_bytes());
  }

  PeerRequest RowRequest(uint32_t stripe, uint32_t parity) const {
    PeerRequest request;
    request.kind = PeerRequestKind::kParityRow;
    request.job = access_.job;
    request.version = access_.version;
    request.stripe = stripe;
    request.index = parity;
    request.bytes = layout_.segment_bytes();
    return request;
  }

  /// Encodes this member's stripe unit by unit.
  Status Lead() {
    const uint32_t stripe = position_;
    const uint32_t k = layout_.data_count();
    const uint32_t m = layout_.parity_count();
    HOLDFAST_ASSIGN_OR_RETURN(const auto code, ErasureCode::Make(k, m));
    std::vector<std::unique_ptr<NodeImageReader>> readers;
    std::vector<std::vector<std::byte>> units(k, std::vector<std::byte>(kStripeUnitBytes));
    for (const StripeMember& data : layout_.DataMembers(stripe)) {
      readers.push_back(
          std::make_unique<NodeImageReader>(access_, data.node, data.begin, data.end));
    }
    std::vector<std::shared_ptr<RowQueue>> queues;
    for (uint32_t parity = 1; parity < m; ++parity) {
      queues.push_back(rows_.Find(RowRequest(stripe, parity)));
      if (queues.back() == nullptr) {
        return ResourceExhaustedError("too many rows of parity are pending");
      }
    }
    std::vector<std::vector<std::byte>> forwarded(m - 1, std::vector<std::byte>(kStripeUnitBytes));
    const std::span<std::byte> kept = Row(0);
    const uint64_t bytes = layout_.ParityBytes(stripe);
    // Unit by unit: memory stays bounded, and followers receive rows while segments are being
    // copied.
    for (uint64_t at = 0; at < bytes;) {
      const uint64_t unit = std::min(kStripeUnitBytes, bytes - at);
      std::vector<std::span<const std::byte>> data(k);
      for (uint32_t i = 0; i < k; ++i) {
        const auto into = std::span(units[i]).first(unit);
        HOLDFAST_ASSIGN_OR_RETURN(const bool any, readers[i]->Next(into, deadline_));
        if (any) data[i] = into;
      }
      std::vector<std::span<std::byte>> parities = {kept.subspan(at, unit)};
      for (auto& row : forwarded) parities.push_back(std::span(row).first(unit));
      HOLDFAST_RETURN_IF_ERROR(code->Encode(data, parities));
      for (uint32_t parity = 1; parity < m; ++parity) {
        HOLDFAST_RETURN_IF_ERROR(queues[parity - 1]->Push(parities[parity], deadline_));
      }
      at += unit;
      HOLDFAST_CRASH_POINT("agent.mid_stripe");
    }
    for (const auto& queue : queues) queue->Close(Status::Ok());
    // After the parity, the slot may still hold bytes of an older version.
    std::memset(kept.data() + bytes, 0, kept.size() - bytes);
    return Status::Ok();
  }

  /// Reads a further row from its stripe's leader.
  Status Follow(uint32_t parity) {
    const uint32_t stripe = ParityImage::StripeOfRow(layout_, position_, parity);
    const std::span<std::byte> row = Row(parity);
    HOLDFAST_ASSIGN_OR_RETURN(
        auto stream, access_.Open(layout_.LeaderOf(stripe), RowRequest(stripe, parity), deadline_));
    const uint64_t bytes = layout_.ParityBytes(stripe);
    std::vector<std::byte> unit(kStripeUnitBytes);
    uint64_t at = 0;
    for (;;) {
      HOLDFAST_ASSIGN_OR_RETURN(const size_t got, stream->Read(unit, deadline_));
      if (got == 0) break;
      if (got > bytes - at) return DataLossError("a leader sent more parity than its stripe has");
      std::memcpy(row.data() + at, unit.data(), got);
      at += got;
    }
    if (at != bytes) return DataLossError("a leader sent less parity than its stripe has");
    std::memset(row.data() + at, 0, row.size() - at);
    return Status::Ok();
  }

  const GroupAccess& access_;
  const StripeLayout& layout_;
  RowExchange& rows_;
  const uint32_t position_;
  const std::span<std::byte> slot_;
  const Clock::TimePoint deadline_;
};

}  // namespace

Result<ShardSeal> BuildParity(const GroupAccess& access, uint32_t world, RowExchange& rows,
                              std::span<std::byte> slot, Clock& clock, Clock::TimePoint deadline) {
  const auto position = access.plan.PositionOf(access.self);
  if (!position) return Fail(InvalidArgumentError("node " + access.self + " is not in the group"));
  const Rank rank = ParityRank(access.plan.members()[*position].number);
  ShardSeal seal;
  seal.identity = {access.job, access.version, rank, world};
  HOLDFAST_ASSIGN_OR_RETURN(const ParityImage image,
                            ParityImage::Make(access.plan, *position, seal.identity));
  if (slot.size() < image.image_bytes()) {
    return Fail(InternalError("the slot is too small for the parity image"));
  }
  Builder builder(access, rows, *position, slot, deadline);
  const Status made = builder.MakeRows();
  // A member that has not read its row by now has failed, or will request a row of another version.
  if (!made.ok()) {
    rows.Drop(access.job, access.version, made);
    return Fail(made);
  }
  HOLDFAST_ASSIGN_OR_RETURN(const std::vector<ShardSeal> seals, CollectSeals(access, deadline));
  HOLDFAST_RETURN_IF_ERROR(image.Finish(slot, seals));
  seal.image_bytes = image.image_bytes();
  seal.chunk_crcs = ChunkCrcs(slot.first(image.image_bytes()));
  seal.wall_nanos = clock.WallNanos();
  return seal;
}

}  // namespace holdfast::agent
