#pragma once

#include <holdfast/holdfast.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/api/version_listing.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "client/core/agent_link.h"
#include "client/core/content_tables.h"
#include "client/core/options.h"
#include "client/core/read_plan.h"
#include "storage/format/version_index.h"

namespace holdfast::client {

/// Memory of the agent, mapped read-only: the window of a reader with the listing, or an index.
/// Movable; unmaps when destroyed.
class WindowMapping {
 public:
  WindowMapping() = default;
  WindowMapping(WindowMapping&& other) noexcept { *this = std::move(other); }
  WindowMapping& operator=(WindowMapping&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~WindowMapping();
  /// Checks the descriptor's real size, and that it has the `seals` of fcntl.
  static Result<WindowMapping> Map(int fd, uint64_t bytes, int seals);
  std::span<const std::byte> memory() const { return memory_; }

 private:
  std::span<const std::byte> memory_;
};

/// Reads the shards of a committed version, as holdfast_reader_open promises. It begins with the
/// shard that this rank saved itself, and reads the index of all shards when that does not suffice.
/// The agent closes its side when the connection is lost; the next load opens the same version
/// again. Thread-safe.
class VersionReader {
 public:
  /// Opens `wanted`, or the newest version, at the agent. `link` and `options` must outlive the
  /// reader.
  static Result<std::unique_ptr<VersionReader>> Open(AgentLink& link, const ClientOptions& options,
                                                     std::optional<VersionId> wanted,
                                                     MonotonicTime deadline);
  /// For Open() only.
  VersionReader(AgentLink& link, const ClientOptions& options) : link_(link), options_(options) {}
  ~VersionReader();

  /// The content of the own shard.
  const holdfast_reader_info& own() const { return own_info_; }
  /// Reads what all shards contain, unless an earlier call has.
  Status List(MonotonicTime deadline);
  /// The content of all shards; only version, tier and world before List() has succeeded.
  const holdfast_reader_info& all();
  /// Returns each tensor of the version once, as the lowest rank that saved it described it.
  /// Without extras.
  Result<const holdfast_reader_info*> Tensors(MonotonicTime deadline);
  /// Returns the extra `name` of a shard. NotFound: the shard has none.
  Result<holdfast_extra> Extra(Rank rank, const std::string& name, MonotonicTime deadline);
  /// Fills the tensors of `wanted`. When it returns FailedPrecondition, `differences` has the
  /// reasons, one sentence each.
  Status Load(const StateDescription& wanted, MonotonicTime deadline,
              std::vector<std::string>* differences);

 private:
  Status OpenAtAgent(const AgentLink::Use& use, std::optional<VersionId> wanted,
                     MonotonicTime deadline) HOLDFAST_REQUIRES(mutex_);
  /// Opens the same version again, if the connection is another one than before.
  Status OpenAgain(const AgentLink::Use& use, MonotonicTime deadline) HOLDFAST_REQUIRES(mutex_);
  void CloseAtAgent(const AgentLink::Use& use) HOLDFAST_REQUIRES(mutex_);
  Status CheckOwnSlot(const AgentLink::Use& use, const agent::ReplyMessage& reply, uint64_t bytes);
  Status TakeShards(const AgentLink::Use& use, const agent::ReplyMessage& reply, bool all_shards)
      HOLDFAST_REQUIRES(mutex_);
  Status TakeOwn(const agent::ListedShard& listed, VersionId version) HOLDFAST_REQUIRES(mutex_);
  Status BuildIndex(std::span<const agent::ListedShard> listing, VersionId version)
      HOLDFAST_REQUIRES(mutex_);
  Status ReadIndex(const AgentLink::Use& use, MonotonicTime deadline) HOLDFAST_REQUIRES(mutex_);
  /// The connection, with the index of this reader's version.
  Result<AgentLink::Use> EnterWithIndex(MonotonicTime deadline) HOLDFAST_REQUIRES(mutex_);
  Status FillTables(const AgentLink::Use& use, MonotonicTime deadline) HOLDFAST_REQUIRES(mutex_);
  Status AddExtras(const AgentLink::Use& use, const VersionIndex::Shard& shard,
                   MonotonicTime deadline) HOLDFAST_REQUIRES(mutex_);
  Result<std::string> ContentOf(const AgentLink::Use& use, const VersionIndex::Shard& shard,
                                const VersionIndex::Extra& extra, MonotonicTime deadline)
      HOLDFAST_REQUIRES(mutex_);
  /// Reads bytes of a shard's image.
  Result<std::string> ReadBytes(const AgentLink::Use& use, const VersionIndex::Shard& shard,
                                uint64_t begin, uint64_t end, MonotonicTime deadline)
      HOLDFAST_REQUIRES(mutex_);
  Result<LoadPlan> Plan(const AgentLink::Use& use, const StateDescription& wanted,
                        MonotonicTime deadline, std::vector<std::string>* differences)
      HOLDFAST_REQUIRES(mutex_);
  Status Run(const AgentLink::Use& use, const LoadPlan& plan, MonotonicTime deadline)
      HOLDFAST_REQUIRES(mutex_);
  /// The state that the threads of one load share.
  struct Reading;
  Status ReadUnits(Reading& reading, uint32_t place);

  VersionId version() const {
    return {Incarnation{own_info_.version.incarnation}, Step{own_info_.version.step}};
  }
  KnownShards known() const HOLDFAST_REQUIRES(mutex_) {
    return {own_ ? &*own_ : nullptr, index_ ? &*index_ : nullptr, near_};
  }

  AgentLink& link_;
  const ClientOptions& options_;

  // Constant after the first open.
  holdfast_reader_info own_info_{};
  ContentTables own_tables_;

  Mutex mutex_;  // one load at a time
  std::optional<PlannedShard> own_ HOLDFAST_GUARDED_BY(mutex_);
  std::optional<VersionIndex> index_ HOLDFAST_GUARDED_BY(mutex_);
  WindowMapping index_memory_ HOLDFAST_GUARDED_BY(mutex_);         // the agent's index, or:
  std::vector<uint64_t> index_bytes_ HOLDFAST_GUARDED_BY(mutex_);  // made from a listing
  std::vector<uint32_t> near_ HOLDFAST_GUARDED_BY(mutex_);
  std::unique_ptr<ContentTables> tables_ HOLDFAST_GUARDED_BY(mutex_);
  holdfast_reader_info info_ HOLDFAST_GUARDED_BY(mutex_){};
  std::unique_ptr<ContentTables> tensor_tables_ HOLDFAST_GUARDED_BY(mutex_);
  holdfast_reader_info tensors_ HOLDFAST_GUARDED_BY(mutex_){};
  // By rank and name. Views of contents_, where those that many ranks have are once.
  std::map<std::pair<Rank, std::string>, std::string_view> extras_ HOLDFAST_GUARDED_BY(mutex_);
  std::set<std::string> contents_ HOLDFAST_GUARDED_BY(mutex_);
  WindowMapping mapping_ HOLDFAST_GUARDED_BY(mutex_);  // the agent writes its places
  uint32_t number_ HOLDFAST_GUARDED_BY(mutex_) = 0;    // of the reader at the agent
  uint64_t epoch_ HOLDFAST_GUARDED_BY(mutex_) = 0;     // of the connection; 0: not open there
  std::optional<uint32_t> own_slot_ HOLDFAST_GUARDED_BY(mutex_);  // has this rank's own shard
};

}  // namespace holdfast::client
