#include "agent/pipeline/peer_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "agent/parity/decoder.h"
#include "agent/pipeline/node.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {

/// A slot that a peer reads; kept until then. The version may still be on its way.
class FollowedSlot {
 public:
  FollowedSlot(std::shared_ptr<RankPipeline> rank, VersionId version)
      : rank_(std::move(rank)), version_(version) {}
  ~FollowedSlot() {
    if (slot_) rank_->slots.Unpin(*slot_);
  }
  FollowedSlot(const FollowedSlot&) = delete;
  FollowedSlot& operator=(const FollowedSlot&) = delete;

  Result<uint32_t> Await(Clock::TimePoint deadline) {
    if (!slot_) {
      HOLDFAST_ASSIGN_OR_RETURN(slot_, rank_->slots.Follow(version_, cancelled_, deadline));
    }
    return *slot_;
  }
  Result<ShardSeal> AwaitSeal(Clock::TimePoint deadline) {
    HOLDFAST_ASSIGN_OR_RETURN(const uint32_t slot, Await(deadline));
    return rank_->slots.AwaitSeal(slot, cancelled_, deadline);
  }
  void Cancel() {
    cancelled_.store(true);
    rank_->slots.Wake();
  }
  RankPipeline& rank() { return *rank_; }
  const std::atomic<bool>& cancelled() const { return cancelled_; }

 private:
  const std::shared_ptr<RankPipeline> rank_;
  const VersionId version_;
  std::atomic<bool> cancelled_{false};
  std::optional<uint32_t> slot_;
};

class ImageReader final : public PeerReader {
 public:
  ImageReader(std::shared_ptr<RankPipeline> rank, VersionId version)
      : followed_(std::move(rank), version) {}

  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint deadline) override {
    HOLDFAST_ASSIGN_OR_RETURN(const uint32_t slot, followed_.Await(deadline));
    Segment& segment = followed_.rank().segment;
    const uint64_t image_bytes = segment.record(slot).image_bytes;
    const uint64_t end = std::min(offset + bytes, image_bytes);
    if (offset >= end) return std::span<const std::byte>();
    HOLDFAST_ASSIGN_OR_RETURN(
        const uint64_t ready,
        followed_.rank().slots.AwaitBytes(slot, end, followed_.cancelled(), deadline));
    if (ready < end) return Fail(InternalError("a sealed slot is shorter than its image"));
    HOLDFAST_RETURN_IF_ERROR(CheckChunks(slot, offset, end));
    return std::span<const std::byte>(segment.slot(slot).subspan(offset, end - offset));
  }
  void Cancel() override { followed_.Cancel(); }

 private:
  /// What was sealed before is not trusted to have stayed as it was. What is being saved has just
  /// been checksummed.
  Status CheckChunks(uint32_t slot, uint64_t begin, uint64_t end) {
    Segment& segment = followed_.rank().segment;
    if (!seal_) {
      auto seal = segment.seal(slot);
      if (!seal) return Status::Ok();
      seal_ = *std::move(seal);
    }
    for (uint64_t chunk = begin / kChunkBytes; chunk * kChunkBytes < end; ++chunk) {
      if (chunk < checked_) continue;
      const uint64_t at = chunk * kChunkBytes;
      const auto bytes =
          segment.slot(slot).subspan(at, std::min(kChunkBytes, seal_->image_bytes - at));
      if (chunk >= seal_->chunk_crcs.size() || Crc32c(bytes) != seal_->chunk_crcs[chunk]) {
        return DataLossError(fmt::format("{} in memory: chunk {} does not match its checksum",
                                         ToString(seal_->identity.key()), chunk));
      }
      checked_ = chunk + 1;
    }
    return Status::Ok();
  }

  FollowedSlot followed_;
  std::optional<ShardSeal> seal_;
  uint64_t checked_ = 0;  // chunks below are good, or were not asked for
};

class SealReader final : public PeerReader {
 public:
  SealReader(std::shared_ptr<RankPipeline> rank, VersionId version)
      : followed_(std::move(rank), version) {}

  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint deadline) override {
    if (record_.empty()) {
      HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, followed_.AwaitSeal(deadline));
      record_ = EncodeSeal(seal);
    }
    const auto rest = std::as_bytes(std::span(record_)).subspan(std::min(offset, record_.size()));
    return rest.first(std::min(bytes, rest.size()));
  }
  void Cancel() override { followed_.Cancel(); }

 private:
  FollowedSlot followed_;
  std::string record_;
};

}  // namespace

Result<std::unique_ptr<PeerReader>> NodePeerSource::Open(const PeerRequest& request) {
  {
    MutexLock lock(mutex_);
    auto known = incarnations_.find(request.job);
    if (known != incarnations_.end() && request.incarnation < known->second) {
      return Fail(
          FencedError(fmt::format("incarnation {} of {} has started; a peer of incarnation "
                                  "{} is not served",
                                  known->second.value, request.job, request.incarnation.value)));
    }
  }
  if (request.kind == PeerRequestKind::kParityRow) return rows_.Open(request);
  if (request.kind == PeerRequestKind::kDecode) {
    return OpenDecoder(request, node_, *this, transport_);
  }
  std::shared_ptr<RankPipeline> rank = find_rank_(request.job, request.rank);
  if (rank == nullptr) {
    return Fail(NotFoundError(fmt::format("node {} has no memory of {} of {}", node_,
                                          ShardName(request.rank), request.job)));
  }
  if (request.kind == PeerRequestKind::kSeal) {
    return std::make_unique<SealReader>(std::move(rank), request.version);
  }
  return std::make_unique<ImageReader>(std::move(rank), request.version);
}

void NodePeerSource::SetIncarnation(const std::string& job, Incarnation incarnation) {
  MutexLock lock(mutex_);
  incarnations_[job] = incarnation;
}

}  // namespace holdfast::agent
