#include "cli/shards/group_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cli/core/interrupt.h"
#include "storage/format/chunk.h"

namespace holdfast::cli {

namespace {

/// Chunks requested from an agent at a time: with a call for each, the calls would take longer than
/// the transfer.
constexpr uint64_t kChunksAtOnce = 4;

/// Reads by chunks and keeps the last ones of each shard, since the next reads are adjacent.
class ChunkedImages : public ShardImages {
 public:
  Status Read(Rank shard, uint64_t offset, std::span<std::byte> into) override {
    HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, Seal(shard));
    if (offset > seal.image_bytes || into.size() > seal.image_bytes - offset) {
      return DataLossError(fmt::format("{} has {} bytes, fewer than its parity group's plan has",
                                       ToString(seal.identity.key()), seal.image_bytes));
    }
    Kept& kept = kept_[shard];
    for (uint64_t done = 0; done < into.size();) {
      const uint64_t chunk = (offset + done) / kChunkBytes;
      if (chunk < kept.first || chunk >= kept.first + kept.chunks) {
        HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
        kept.chunks = 0;
        HOLDFAST_RETURN_IF_ERROR(Load(shard, seal, chunk, kept));
      }
      const uint64_t at = offset + done - kept.first * kChunkBytes;
      const uint64_t bytes = std::min<uint64_t>(kept.bytes.size() - at, into.size() - done);
      std::memcpy(into.data() + done, kept.bytes.data() + at, bytes);
      done += bytes;
    }
    return Status::Ok();
  }

 protected:
  struct Kept {
    uint64_t first = 0;  // chunk
    uint64_t chunks = 0;
    std::vector<std::byte> bytes;
  };
  /// Fills `kept` with at least one chunk, from `chunk` on.
  virtual Status Load(Rank shard, const ShardSeal& seal, uint64_t chunk, Kept& kept) = 0;

 private:
  std::map<Rank, Kept> kept_;
};

// ---- data directories ----

class VolumeImages : public ChunkedImages {
 public:
  VolumeImages(const std::vector<OfflineVolume>& volumes, std::string job, VersionId version)
      : volumes_(volumes), job_(std::move(job)), version_(version) {}

  Result<ShardSeal> Seal(Rank shard) override {
    HOLDFAST_ASSIGN_OR_RETURN(const Holder* holder, Find(shard));
    return holder->chunks->seal();
  }

 protected:
  Status Load(Rank shard, const ShardSeal& /*seal*/, uint64_t chunk, Kept& kept) override {
    HOLDFAST_ASSIGN_OR_RETURN(Holder * holder, Find(shard));
    auto bytes = holder->chunks->Read(chunk);
    if (!bytes) {
      holder->chunks.reset();  // after a device error, the files must be opened again
      return bytes.error();
    }
    kept.bytes.assign(bytes->begin(), bytes->end());
    kept.first = chunk;
    kept.chunks = 1;
    return Status::Ok();
  }

 private:
  struct Holder {
    std::unique_ptr<ShardChunks> chunks;
  };
  Result<Holder*> Find(Rank shard) {
    Holder& holder = holders_[shard];
    if (holder.chunks != nullptr) return &holder;
    const ShardKey key{job_, version_, shard};
    for (const OfflineVolume& volume : volumes_) {
      auto chunks = volume.volume->OpenChunks(key);
      if (!chunks || (*chunks)->seal().identity.key() != key) continue;
      holder.chunks = *std::move(chunks);
      return &holder;
    }
    return Fail(NotFoundError("no data directory here has " + ToString(key)));
  }

  const std::vector<OfflineVolume>& volumes_;
  const std::string job_;
  const VersionId version_;
  std::map<Rank, Holder> holders_;
};

class VolumeVersion : public VersionImages {
 public:
  VolumeVersion(const std::vector<OfflineVolume>& volumes, std::string job, VersionId version)
      : volumes_(volumes), job_(std::move(job)), version_(version) {}
  std::unique_ptr<ShardImages> Open() const override {
    return std::make_unique<VolumeImages>(volumes_, job_, version_);
  }
  std::vector<Rank> Parity() const override {
    std::vector<Rank> parity;
    for (const OfflineVolume& volume : volumes_) {
      for (const StoredShard& shard : volume.shards) {
        const ShardIdentity& identity = shard.identity;
        if (identity.job == job_ && identity.version == version_ && IsParity(identity.rank)) {
          parity.push_back(identity.rank);
        }
      }
    }
    return parity;
  }

 private:
  const std::vector<OfflineVolume>& volumes_;
  const std::string job_;
  const VersionId version_;
};

// ---- agents ----

struct AgentCopy {
  std::string node;
  std::string address;
  Tier tier = Tier::kDisk;
  uint64_t digest = 0;
};
using AgentCopies = std::map<Rank, std::vector<AgentCopy>>;

/// Stores the seal, and the bytes in order.
class CollectingSink : public ShardSink {
 public:
  CollectingSink(std::optional<ShardSeal>& seal, std::vector<std::byte>* bytes)
      : seal_(seal), bytes_(bytes) {}
  Status Begin(const ShardSeal& seal) override {
    seal_ = seal;
    return Status::Ok();
  }
  Status Chunk(uint64_t /*offset*/, std::span<const std::byte> bytes) override {
    if (bytes_ != nullptr) bytes_->insert(bytes_->end(), bytes.begin(), bytes.end());
    return Status::Ok();
  }

 private:
  std::optional<ShardSeal>& seal_;
  std::vector<std::byte>* const bytes_;
};

class AgentImages : public ChunkedImages {
 public:
  AgentImages(const AgentCopies& copies, std::string job, VersionId version,
              const GlobalOptions& options)
      : copies_(copies), job_(std::move(job)), version_(version), options_(options) {}

  Result<ShardSeal> Seal(Rank shard) override {
    auto known = seals_.find(shard);
    if (known != seals_.end()) return known->second;
    Status last = NotFoundError("no live node has " + ToString(ShardKey{job_, version_, shard}));
    auto copies = copies_.find(shard);
    for (size_t i = 0; copies != copies_.end() && i < copies->second.size(); ++i) {
      const AgentCopy& copy = copies->second[i];
      std::optional<ShardSeal> seal;
      last = ReadPart(copy, shard, 0, 0, seal, nullptr);
      if (last.ok() && seal && seal->digest() != copy.digest && copy.digest != 0) {
        last = DataLossError("node " + copy.node + " has other bytes than were committed");
      }
      if (last.ok() && seal) return seals_[shard] = *seal;
    }
    return Fail(last);
  }

 protected:
  Status Load(Rank shard, const ShardSeal& seal, uint64_t chunk, Kept& kept) override {
    Status last = NotFoundError("no live node has it");
    // After a failure, reads this chunk alone: the others of the call may be the corrupt ones.
    for (const uint64_t wanted : {kChunksAtOnce, uint64_t{1}}) {
      for (const AgentCopy& copy : copies_.at(shard)) {
        const uint64_t offset = chunk * kChunkBytes;
        const uint64_t bytes = std::min(wanted * kChunkBytes, seal.image_bytes - offset);
        std::optional<ShardSeal> sent;
        kept.bytes.clear();
        last = ReadPart(copy, shard, offset, bytes, sent, &kept.bytes);
        if (last.ok() && (!sent || sent->digest() != seal.digest())) {
          last = DataLossError("node " + copy.node + " has replaced it with other bytes");
        }
        if (!last.ok()) continue;
        kept.first = chunk;
        kept.chunks = (bytes + kChunkBytes - 1) / kChunkBytes;
        return last;
      }
    }
    return last;
  }

 private:
  Status ReadPart(const AgentCopy& copy, Rank shard, uint64_t offset, uint64_t bytes,
                  std::optional<ShardSeal>& seal, std::vector<std::byte>* into) {
    auto agent = agents_.find(copy.node);
    if (agent == agents_.end()) {
      HOLDFAST_ASSIGN_OR_RETURN(AgentClient opened,
                                AgentClient::Open(copy.node, copy.address, options_));
      agent = agents_.emplace(copy.node, std::move(opened)).first;
    }
    CollectingSink sink(seal, into);
    return agent->second.ReadPart({job_, version_, shard}, copy.tier, offset, bytes, sink);
  }

  const AgentCopies& copies_;
  const std::string job_;
  const VersionId version_;
  const GlobalOptions& options_;
  std::map<std::string, AgentClient> agents_;
  std::map<Rank, ShardSeal> seals_;
};

class AgentVersion : public VersionImages {
 public:
  AgentVersion(const coordinator::PlanRestoreReply& plan, std::string job,
               const GlobalOptions& options)
      : job_(std::move(job)),
        version_{Incarnation{plan.version().incarnation()}, Step{plan.version().step()}},
        options_(options) {
    const auto add = [this](const coordinator::ShardSource& source) {
      copies_[Rank{source.rank()}].push_back(
          {source.node(), source.address(), static_cast<Tier>(source.tier()), source.digest()});
    };
    for (const auto& source : plan.sources()) add(source);
    for (const auto& source : plan.parity()) add(source);
  }
  std::unique_ptr<ShardImages> Open() const override {
    return std::make_unique<AgentImages>(copies_, job_, version_, options_);
  }
  std::vector<Rank> Parity() const override {
    std::vector<Rank> parity;
    for (const auto& [rank, copies] : copies_) {
      if (IsParity(rank)) parity.push_back(rank);
    }
    return parity;
  }

 private:
  const std::string job_;
  const VersionId version_;
  const GlobalOptions& options_;
  AgentCopies copies_;
};

}  // namespace

std::unique_ptr<VersionImages> ImagesOf(const std::vector<OfflineVolume>& volumes,
                                        const std::string& job, VersionId version) {
  return std::make_unique<VolumeVersion>(volumes, job, version);
}

std::unique_ptr<VersionImages> ImagesOf(const coordinator::PlanRestoreReply& plan,
                                        const std::string& job, const GlobalOptions& options) {
  return std::make_unique<AgentVersion>(plan, job, options);
}

Result<LostShards::Opened> LostShards::Open(Rank rank) {
  {
    MutexLock lock(mutex_);
    auto idle = idle_.find(rank);
    if (idle != idle_.end() && !idle->second.empty()) {
      Opened opened = std::move(idle->second.back());
      idle->second.pop_back();
      return opened;
    }
  }
  Status last = NotFoundError("no available parity shard protects " + ShardName(rank));
  for (const Rank parity : images_->Parity()) {
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    Opened opened;
    opened.images = images_->Open();
    auto decoder = GroupDecoder::Open(*opened.images, job_, version_, parity);
    if (!decoder) {
      last = decoder.error();
      continue;
    }
    if (!(*decoder)->plan().PositionOf(rank)) continue;
    opened.decoder = *std::move(decoder);
    return opened;
  }
  return Fail(last);
}

void LostShards::Return(Rank rank, Opened opened) {
  MutexLock lock(mutex_);
  idle_[rank].push_back(std::move(opened));
}

Result<ShardSeal> LostShards::Find(Rank rank) {
  HOLDFAST_ASSIGN_OR_RETURN(Opened opened, Open(rank));
  HOLDFAST_RETURN_IF_ERROR(opened.decoder->CheckDecodable(rank));
  auto seal = opened.decoder->Seal(rank);
  Return(rank, std::move(opened));
  return seal;
}

std::vector<GroupPlan> LostShards::Plans() {
  std::vector<GroupPlan> plans;
  for (const Rank parity : images_->Parity()) {
    if (Interrupt::requested()) break;
    const bool known = std::any_of(plans.begin(), plans.end(), [&](const GroupPlan& plan) {
      return plan.PositionOfNumber(ParityNode(parity)).has_value();
    });
    if (known) continue;
    const auto images = images_->Open();
    auto decoder = GroupDecoder::Open(*images, job_, version_, parity);
    if (decoder) plans.push_back((*decoder)->plan());
  }
  return plans;
}

Status LostShards::Stream(Rank rank, uint64_t offset, uint64_t bytes, ShardSink& sink) {
  HOLDFAST_ASSIGN_OR_RETURN(Opened opened, Open(rank));
  HOLDFAST_ASSIGN_OR_RETURN(const ShardSeal seal, opened.decoder->Seal(rank));
  HOLDFAST_RETURN_IF_ERROR(sink.Begin(seal));
  const uint64_t end = std::min(offset + bytes, seal.image_bytes);
  std::vector<std::byte> chunk;
  for (uint64_t at = offset; at < end; at += kChunkBytes) {
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    chunk.resize(std::min(kChunkBytes, seal.image_bytes - at));
    const Status decoded = opened.decoder->Decode(rank, at, chunk);
    if (!decoded.ok()) {
      return decoded.WithContext(ToString(seal.identity.key()) + " decoded from its group");
    }
    if (!IsChunk(seal, at / kChunkBytes, chunk)) {
      return BadChunkError(seal, at / kChunkBytes, "decoded from its group");
    }
    HOLDFAST_RETURN_IF_ERROR(sink.Chunk(at, chunk));
  }
  Return(rank, std::move(opened));
  return Status::Ok();
}

}  // namespace holdfast::cli
