#include "agent/pipeline/peer_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "agent/parity/decoder.h"
#include "storage/format/chunk.h"

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
      const auto bytes = segment.slot(slot).subspan(chunk * kChunkBytes, ChunkBytes(*seal_, chunk));
      if (!IsChunk(*seal_, chunk, bytes)) {
        const Status damage = BadChunkError(*seal_, chunk, "in this node's memory");
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

/// Reads a sealed shard from the replicas of this node, each chunk from one that has it intact.
class SealedReader final : public PeerReader {
 public:
  SealedReader(const ShardKey& key, ShardSeal seal, SourceList sources, DamageTracker& damage)
      : seal_(std::move(seal)),
        sources_(std::move(sources)),
        selector_(key, seal_.digest(), sources_, damage) {}

  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint /*deadline*/) override {
    const uint64_t end = std::min(offset + bytes, seal_.image_bytes);
    unit_.clear();
    for (uint64_t at = offset; at < end;) {
      const uint64_t chunk = at / kChunkBytes;
      if (chunk != loaded_) HOLDFAST_RETURN_IF_ERROR(Load(chunk));
      const auto from = std::span<const std::byte>(chunk_).subspan(at % kChunkBytes);
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
    loaded_.reset();
    chunk_.resize(ChunkBytes(seal_, chunk));
    WantedChunk wanted{chunk, chunk_};
    HOLDFAST_RETURN_IF_ERROR(selector_.Read(seal_, {&wanted, 1}));
    loaded_ = chunk;
    return Status::Ok();
  }

  const ShardSeal seal_;
  const SourceList sources_;
  SourceSelector selector_;
  std::optional<uint64_t> loaded_;
  std::vector<std::byte> chunk_;
  std::vector<std::byte> unit_;
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

/// Returns bytes of no job, as many as are requested. What a peer reads in a second measures the
/// path that shards take: the network, TLS, and the limit peers.rate_bytes_per_s.
class ProbeReader final : public PeerReader {
 public:
  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                          Clock::TimePoint /*deadline*/) override {
    if (offset >= kPeerProbeBytesMax) return std::span<const std::byte>();
    return std::span<const std::byte>(unit_).first(
        std::min({bytes, kPeerUnitBytes, kPeerProbeBytesMax - offset}));
  }

 private:
  const std::vector<std::byte> unit_ = std::vector<std::byte>(kPeerUnitBytes);
};

/// Returns the seal of the nearest replica that the request accepts. A request cannot show that a
/// replica is bad, so another digest is not reported as damage.
Result<ShardSeal> FindSeal(const SourceList& sources, const PeerRequest& request) {
  Status last;
  for (const auto& source : sources) {
    auto seal = source->ReadSeal();
    if (seal && (request.digest == 0 || seal->digest() == request.digest)) return seal;
    last = seal ? NotFoundError(fmt::format("the replica has digest {:016x} and not {:016x}",
                                            seal->digest(), request.digest))
                : seal.error();
  }
  return Fail(last);
}

/// Returns whether the rank's memory has the requested replica intact.
bool IsIntact(RankPipeline& rank, const PeerRequest& request) {
  const auto slot = rank.slots.pins().Pin(request.version, SlotPins::Find::kIntact);
  if (!slot) return false;
  const auto seal = rank.segment.seal(*slot);
  rank.slots.pins().Unpin(*slot);
  return seal && (request.digest == 0 || seal->digest() == request.digest);
}
}  // namespace

Result<std::unique_ptr<PeerReader>> NodePeerSource::Open(const PeerRequest& request) {
  if (request.kind == PeerRequestKind::kProbe) return std::make_unique<ProbeReader>();
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
    return OpenDecoder(request, node_, *this, transport_, clock_);
  }
  if (request.kind == PeerRequestKind::kNodeIndex) return indexes_.Open(request);
  return OpenShard(request);
}

/// Prefers an intact slot, which is sent without a copy. A shard that is not sealed anywhere may
/// still be being saved.
Result<std::unique_ptr<PeerReader>> NodePeerSource::OpenShard(const PeerRequest& request) {
  const ShardKey key{request.job, request.version, request.rank};
  const bool seal_only = request.kind == PeerRequestKind::kSeal;
  RankLease rank = ranks_.FindHolder(key);
  const bool intact = rank && IsIntact(*rank, request);
  if (intact && !seal_only) {
    return std::make_unique<ImageReader>(std::move(rank), request.version, damage_);
  }
  SourceList sources;
  sources.push_back(shards_.Source(key, Tier::kMemory));
  sources.push_back(shards_.Source(key, Tier::kDisk));
  auto seal = FindSeal(sources, request);
  if (seal && seal_only) {
    // Parts and header describe this volume's files; peers need only the image's checksums.
    seal->parts.clear();
    seal->image_header.clear();
    return std::make_unique<RecordReader>(EncodeSeal(*seal));
  }
  if (seal) {
    return std::make_unique<SealedReader>(key, *std::move(seal), std::move(sources), damage_);
  }
  if (request.sealed || seal.error().code() != ErrorCode::kNotFound) return Fail(seal.error());
  if (!rank) {
    return Fail(NotFoundError(fmt::format("node {} has no replica of {} of {}", node_,
                                          ShardName(request.rank), request.job)));
  }
  if (seal_only) return std::make_unique<SealReader>(std::move(rank), request.version);
  return std::make_unique<ImageReader>(std::move(rank), request.version, damage_);
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
