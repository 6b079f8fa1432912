#pragma once

#include <holdfast/holdfast.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "client/core/agent_link.h"
#include "client/core/options.h"
#include "client/core/read_plan.h"

namespace holdfast::client {

/// The memory that the agent shares with one reader: a window and the listing. Mapped read-only.
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
  /// Checks the descriptor's real size, and that the memory cannot shrink while it is mapped.
  static Result<WindowMapping> Map(int fd, uint64_t bytes);
  std::span<const std::byte> memory() const { return memory_; }

 private:
  std::span<const std::byte> memory_;
};

/// Reads all shards of a committed version, as holdfast_reader_open promises. The agent closes its
/// side when the connection is lost; the next load opens the same version again. Thread-safe.
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

  const holdfast_reader_info& info() const { return info_; }
  /// Fills the tensors of `wanted`. When it returns FailedPrecondition, `differences` has the
  /// reasons, one sentence each.
  Status Load(const StateDescription& wanted, MonotonicTime deadline,
              std::vector<std::string>* differences);

 private:
  Status OpenAtAgent(const AgentLink::Use& use, std::optional<VersionId> wanted,
                     MonotonicTime deadline) HOLDFAST_REQUIRES(mutex_);
  void CloseAtAgent(const AgentLink::Use& use) HOLDFAST_REQUIRES(mutex_);
  Status TakeListing(const agent::ReplyMessage& reply) HOLDFAST_REQUIRES(mutex_);
  void FillInfo(const agent::ReplyMessage& reply);
  Status TakeOwnSlot(const AgentLink::Use& use, const agent::ReplyMessage& reply)
      HOLDFAST_REQUIRES(mutex_);
  Status Run(const AgentLink::Use& use, const LoadPlan& plan, MonotonicTime deadline)
      HOLDFAST_REQUIRES(mutex_);
  /// The state that the threads of one load share.
  struct Reading;
  Status ReadUnits(Reading& reading, uint32_t place);

  AgentLink& link_;
  const ClientOptions& options_;

  // Constant after the first open.
  std::vector<PlannedShard> shards_;  // by rank
  PieceIndex pieces_;
  std::vector<holdfast_piece> piece_table_;
  std::vector<std::string> extra_bytes_;
  std::vector<holdfast_rank_extra> extra_table_;
  holdfast_reader_info info_{};

  Mutex mutex_;                                        // one load at a time
  WindowMapping mapping_ HOLDFAST_GUARDED_BY(mutex_);  // the agent writes its places
  uint32_t number_ HOLDFAST_GUARDED_BY(mutex_) = 0;    // of the reader at the agent
  uint64_t epoch_ HOLDFAST_GUARDED_BY(mutex_) = 0;     // of the connection; 0: not open there
  std::optional<uint32_t> own_slot_ HOLDFAST_GUARDED_BY(mutex_);  // has this rank's own shard
};

}  // namespace holdfast::client
