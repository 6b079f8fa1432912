#pragma once

#include "agent/pipeline/coordinator_link.h"
#include "coordinator/api/channel.h"

namespace holdfast::agent {

/// Reads shards from other agents with their ReadShard call. Thread-safe.
class GrpcShardFetcher final : public ShardFetcher {
 public:
  explicit GrpcShardFetcher(coord::TlsFiles tls) : tls_(std::move(tls)) {}
  Result<std::unique_ptr<ShardStream>> Open(const std::string& address, const ShardKey& key,
                                            Tier tier) override;

 private:
  coord::TlsFiles tls_;
};

}  // namespace holdfast::agent
