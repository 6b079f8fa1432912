#pragma once

#include <map>
#include <memory>
#include <string>

#include "agent/pipeline/coordinator_link.h"
#include "base/mutex.h"
#include "coordinator/api/channel.h"

namespace holdfast::agent {

/// Reads shards from other agents with the ReadShard RPC. Thread-safe.
class GrpcShardFetcher final : public ShardFetcher {
 public:
  explicit GrpcShardFetcher(coord::TlsFiles tls) : tls_(std::move(tls)) {}
  Result<std::unique_ptr<ShardStream>> Open(const std::string& address, const ShardKey& key,
                                            Tier tier) override;
  Result<ShardSeal> ReadRange(const std::string& address, const ShardKey& key, Tier tier,
                              uint64_t offset, std::span<std::byte> into) override;

 private:
  Result<std::shared_ptr<grpc::Channel>> ChannelTo(const std::string& address);

  coord::TlsFiles tls_;
  Mutex mutex_;
  /// Cached, so that the many small reads of a version reader do not each begin with a handshake.
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
