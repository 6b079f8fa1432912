#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "agent/parity/member_streams.h"
#include "storage/chunks/chunk_source.h"

namespace holdfast::agent {

/// How a node reads from the members of parity groups. The references outlive the users.
struct GroupReach {
  std::string node;  // this node's name
  PeerSource& local;
  PeerTransport& transport;
  Clock& clock;

  /// Returns access to a version at the members of `plan`. The arguments outlive it.
  GroupAccess To(const GroupPlan& plan, const std::string& job, VersionId version,
                 Incarnation incarnation, Cancellation& cancellation) const {
    return {.plan = plan,
            .self = node,
            .job = job,
            .version = version,
            .incarnation = incarnation,
            .local = local,
            .transport = transport,
            .cancellation = cancellation,
            .clock = clock};
  }
};

/// A shard that its parity group decodes, chunk by chunk.
class DecodedChunks final : public ChunkSource {
 public:
  /// The sources of all shards of a group share its plan, which is large. `incarnation` is the
  /// job's current one.
  DecodedChunks(const GroupReach& reach, std::shared_ptr<const GroupPlan> plan, ShardKey key,
                Incarnation incarnation)
      : reach_(reach), plan_(std::move(plan)), key_(std::move(key)), incarnation_(incarnation) {}

  SourceCost cost() const override { return SourceCost::kDecode; }
  std::string where() const override { return "decoded by its group"; }
  /// Of a rank's shard. A parity shard has no seal at the other members.
  Result<ShardSeal> ReadSeal() override;
  Status Read(const ShardSeal& seal, std::span<WantedChunk> chunks) override;

  /// Returns how many bytes the group has sent.
  uint64_t decoded_bytes() const { return decoded_bytes_.load(); }

 private:
  const GroupReach reach_;
  const std::shared_ptr<const GroupPlan> plan_;
  const ShardKey key_;
  const Incarnation incarnation_;
  std::atomic<uint64_t> decoded_bytes_{0};
};

}  // namespace holdfast::agent
