#pragma once

#include <optional>
#include <string>

#include "base/mutex.h"
#include "cli/cluster/agent_client.h"
#include "storage/chunks/chunk_source.h"

namespace holdfast::cli {

/// A replica that an agent sends to operators.
class AgentChunks final : public ChunkSource {
 public:
  /// `options` and `clock` outlive the source.
  AgentChunks(std::string node, std::string address, Tier tier, ShardKey key,
              const GlobalOptions& options, const Clock& clock)
      : node_(std::move(node)),
        address_(std::move(address)),
        tier_(tier),
        key_(std::move(key)),
        options_(options),
        clock_(clock) {}

  SourceCost cost() const override;
  std::string where() const override;
  Result<ShardSeal> ReadSeal() override;
  Status Read(const ShardSeal& seal, std::span<WantedChunk> chunks) override;

 private:
  /// Opens the client at the first call.
  Result<const AgentClient*> Client();

  const std::string node_;
  const std::string address_;
  const Tier tier_;
  const ShardKey key_;
  const GlobalOptions& options_;
  const Clock& clock_;
  Mutex mutex_;
  std::optional<AgentClient> client_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::cli
