#include "agent/pipeline/peer_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "agent/parity/decoder.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {

/// A slot that a peer reads. It stays pinned until the destructor. The version need not
/// be sealed when the object is made.
class FollowedSlot {
 public:
  FollowedSlot(RankLease rank, VersionId version) : rank_(std::move(rank)), version_(version) {}
  ~FollowedSlot() {
    if (slot_) rank_->slots.pins().Unpin(*slot_);
  }
  FollowedSlot(const FollowedSlot&) = delete;
  FollowedSlot& operator=(const FollowedSlot&) = delete;

  Result<uint32_t> Await(Clock::TimePoint deadline) {
    if (!slot_) {
      HOLDFAST_ASSIGN_OR_RETURN(slot_, rank_->slots.peers().Follow(version_, cancelled_, deadline));
    }
    return *slot_;
  }
  Result<ShardSeal> AwaitSeal(Clock::TimePoint deadline) {
    HOLDFAST_ASSIGN_OR_RETURN(const uint32_t slot, Await(deadline));
    return rank_->slots.peers().AwaitSeal(slot, cancelled_, deadline);
  }
  void Cancel() {
    cancelled_.store(true);
    rank_->slots.peers().Wake();
  }
  RankPipeline& rank() { return *rank_; }
  const std::atomic<bool>& cancelled() const { return cancelled_; }

 private:
  const RankLease rank_;
  const VersionId version_;
  std::atomic<bool> cancelled_{false};
  std::optional<uint32_t> slot_;
};

class ImageReader final : public PeerReader {
 public:
  ImageReader(RankLease rank, VersionId version, DamageTracker& damage)
      : followed_(std::move(rank), version), damage_(damage) {}

  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint deadline) override {
    HOLDFAST_ASSIGN_OR_RETURN(const uint32_t slot, followed_.Await(deadline));
    Segment& segment = followed_.rank().segment;
    const uint64_t image_bytes = segment.record(slot).image_bytes;
    const uint64_t end = std::min(offset + bytes, image_bytes);
    if (offset >= end) return std::span<const std::byte>();
    HOLDFAST_ASSIGN_OR_RETURN(
        const uint64_t ready,
        followed_.rank().slots.peers().AwaitBytes(slot, end, followed_.cancelled(), deadline));
    if (ready < end) return Fail(InternalError("a sealed slot is shorter than its image"));
    HOLDFAST_RETURN_IF_ERROR(CheckChunks(slot, offset, end));
    return std::span<const std::byte>(segment.slot(slot).subspan(offset, end - offset));
  }
  void Cancel() override { followed_.Cancel(); }

 private:
  /// Verifies the chunks of a sealed slot, since they may have decayed. A slot that is being saved
  /// needs no check: its chunks have just been checksummed.
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
        Status damage =
            DataLossError(fmt::format("{} in memory: chunk {} does not match its checksum",
                                      ToString(seal_->identity.key()), chunk));
        damage_.OnDamaged(seal_->identity.key(), Tier::kMemory, damage);
        return damage;
      }
      checked_ = chunk + 1;
    }
    return Status::Ok();
  }

  FollowedSlot followed_;
  DamageTracker& damage_;
  std::optional<ShardSeal> seal_;
  uint64_t checked_ = 0;  // chunks below this one were verified or not requested
};

/// Reads a shard from disk.
class DiskReader final : public PeerReader {
 public:
  DiskReader(std::unique_ptr<ShardChunks> chunks, DamageTracker& damage)
      : chunks_(std::move(chunks)), damage_(damage) {}

  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint /*deadline*/) override {
    const uint64_t end = std::min(offset + bytes, chunks_->seal().image_bytes);
    unit_.clear();
    for (uint64_t at = offset; at < end;) {
      const uint64_t chunk = at / kChunkBytes;
      if (chunk != chunk_) HOLDFAST_RETURN_IF_ERROR(Load(chunk));
      const auto from = loaded_.subspan(at % kChunkBytes);
      const auto piece = from.first(std::min<uint64_t>(from.size(), end - at));
      // A unit within one chunk is returned without a copy.
      if (piece.size() == end - offset) return piece;
      unit_.insert(unit_.end(), piece.begin(), piece.end());
      at += piece.size();
    }
    return std::span<const std::byte>(unit_);
  }

 private:
  Status Load(uint64_t chunk) {
    chunk_.reset();
    auto loaded = chunks_->Read(chunk);
    if (!loaded) {
      if (loaded.error().code() == ErrorCode::kDataLoss) {
        damage_.OnDamaged(chunks_->seal().identity.key(), Tier::kDisk, loaded.error());
      }
      return loaded.error();
    }
    loaded_ = *loaded;
    chunk_ = chunk;
    return Status::Ok();
  }

  const std::unique_ptr<ShardChunks> chunks_;
  DamageTracker& damage_;
  std::optional<uint64_t> chunk_;
  std::span<const std::byte> loaded_;
  std::vector<std::byte> unit_;
};

/// Reads a shard that memory and disk both have. Bytes that are bad in memory are read from disk.
class FallbackReader final : public PeerReader {
 public:
  FallbackReader(std::unique_ptr<PeerReader> memory, std::unique_ptr<PeerReader> disk)
      : memory_(std::move(memory)), disk_(std::move(disk)) {}

  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint deadline) override {
    auto read = memory_->Read(offset, bytes, deadline);
    if (read || read.error().code() != ErrorCode::kDataLoss) return read;
    return disk_->Read(offset, bytes, deadline);
  }
  void Cancel() override { memory_->Cancel(); }

 private:
  const std::unique_ptr<PeerReader> memory_;
  const std::unique_ptr<PeerReader> disk_;
};

/// Reads an encoded seal.
class RecordReader final : public PeerReader {
 public:
  explicit RecordReader(std::string record) : record_(std::move(record)) {}
  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint /*deadline*/) override {
    const auto rest = std::as_bytes(std::span(record_)).subspan(std::min(offset, record_.size()));
    return rest.first(std::min(bytes, rest.size()));
  }

 private:
  const std::string record_;
};

class SealReader final : public PeerReader {
 public:
  SealReader(RankLease rank, VersionId version) : followed_(std::move(rank), version) {}

  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint deadline) override {
    if (record_ == nullptr) {
      HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, followed_.AwaitSeal(deadline));
      record_ = std::make_unique<RecordReader>(EncodeSeal(seal));
    }
    return record_->Read(offset, bytes, deadline);
  }
  void Cancel() override { followed_.Cancel(); }

 private:
  FollowedSlot followed_;
  std::unique_ptr<RecordReader> record_;
};

bool IsInMemory(RankPipeline& rank, VersionId version, SlotPins::Find find) {
  const auto slot = rank.slots.pins().Pin(version, find);
  if (slot) rank.slots.pins().Unpin(*slot);
  return slot.has_value();
}
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
  return OpenShard(request);
}

/// Prefers an intact slot, then the disk, then a slot that is still being saved. A damaged slot is
/// combined with the replica on disk.
Result<std::unique_ptr<PeerReader>> NodePeerSource::OpenShard(const PeerRequest& request) {
  const bool seal_only = request.kind == PeerRequestKind::kSeal;
  RankLease rank = ranks_.FindHolder({request.job, request.version, request.rank});
  const bool intact = rank && IsInMemory(*rank, request.version, SlotPins::Find::kIntact);
  std::unique_ptr<PeerReader> on_disk;
  if (!intact) {
    auto chunks = volume_.OpenChunks({request.job, request.version, request.rank});
    if (chunks && seal_only) {
      // Parts and header describe this volume's files; peers need only the image's checksums.
      ShardSeal seal = (*chunks)->seal();
      seal.parts.clear();
      seal.image_header.clear();
      return std::make_unique<RecordReader>(EncodeSeal(seal));
    }
    const bool damaged =
        rank && IsInMemory(*rank, request.version, SlotPins::Find::kIncludeDamaged);
    if (!chunks && !damaged && chunks.error().code() != ErrorCode::kNotFound) {
      return Fail(chunks.error());
    }
    if (chunks) on_disk = std::make_unique<DiskReader>(*std::move(chunks), damage_);
    if (on_disk != nullptr && !damaged) return on_disk;
  }
  if (!rank) {
    return Fail(NotFoundError(fmt::format("node {} has no replica of {} of {}", node_,
                                          ShardName(request.rank), request.job)));
  }
  if (seal_only) return std::make_unique<SealReader>(std::move(rank), request.version);
  auto in_memory = std::make_unique<ImageReader>(std::move(rank), request.version, damage_);
  if (on_disk == nullptr) return in_memory;
  return std::make_unique<FallbackReader>(std::move(in_memory), std::move(on_disk));
}

void NodePeerSource::SetIncarnation(const std::string& job, Incarnation incarnation) {
  MutexLock lock(mutex_);
  incarnations_[job] = incarnation;
}

void NodePeerSource::Forget(const std::string& job) {
  MutexLock lock(mutex_);
  incarnations_.erase(job);
}

}  // namespace holdfast::agent
