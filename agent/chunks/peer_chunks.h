#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "agent/peers/transport.h"
#include "storage/chunks/chunk_source.h"

namespace holdfast::agent {

/// Where another node serves its peers.
struct PeerPlace {
  std::string node;
  std::string address;        // empty: not known
  Tier tier = Tier::kMemory;  // nearest tier of the replica there
};

/// A replica in the memory or on the disks of another node. The node serves it paced, and yields to
/// the collectives of its trainers. That node tracks its own damage, so this one reports none.
class PeerChunks final : public ChunkSource {
 public:
  /// `incarnation` is the job's current one; nodes refuse older ones. `transport` and `clock`
  /// outlive the source. All sources on one node count their reads in the same `reads`, if given.
  PeerChunks(PeerTransport& transport, Clock& clock, PeerPlace place, ShardKey key,
             Incarnation incarnation, std::shared_ptr<std::atomic<uint32_t>> reads = nullptr)
      : transport_(transport),
        clock_(clock),
        place_(std::move(place)),
        key_(std::move(key)),
        incarnation_(incarnation),
        reads_(std::move(reads)) {}

  SourceCost cost() const override {
    return place_.tier == Tier::kMemory ? SourceCost::kPeerMemory : SourceCost::kPeerDisk;
  }
  uint32_t load() const override { return reads_ == nullptr ? 0 : reads_->load(); }
  std::string where() const override { return "on node " + place_.node; }
  Result<ShardSeal> ReadSeal() override;
  Status Read(const ShardSeal& seal, std::span<WantedChunk> chunks) override;

 private:
  PeerRequest RequestFor(PeerRequestKind kind) const;
  /// Waits while the node is at its limit of connections.
  Result<std::unique_ptr<PeerStream>> Open(const PeerRequest& request);
  Status ReadRun(const ShardSeal& seal, std::span<WantedChunk> run);
  Status ReadChunk(PeerStream& stream, std::span<std::byte> into) const;
  /// Adds what to do about an address that other machines cannot reach.
  Status Explain(const Status& status) const;

  PeerTransport& transport_;
  Clock& clock_;
  const PeerPlace place_;
  const ShardKey key_;
  const Incarnation incarnation_;
  const std::shared_ptr<std::atomic<uint32_t>> reads_;
};

}  // namespace holdfast::agent
