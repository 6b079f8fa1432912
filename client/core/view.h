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

#include "client/core/agent_link.h"
#include "client/core/options.h"
#include "client/core/view_plan.h"
#include "storage/base/ids.h"
#include "storage/base/mutex.h"

namespace holdfast::client {

/// The memory that the agent shares with one view: a window, and the listing. Mapped for reading.
/// Movable; unmaps when destroyed.
class ViewMapping {
 public:
  ViewMapping() = default;
  ViewMapping(ViewMapping&& other) noexcept { *this = std::move(other); }
  ViewMapping& operator=(ViewMapping&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~ViewMapping();
  /// Checks the descriptor's real size, and that the memory cannot shrink under this process.
  static Result<ViewMapping> Map(int fd, uint64_t bytes);
  std::span<const std::byte> memory() const { return memory_; }

 private:
  std::span<const std::byte> memory_;
};

/// A committed version seen whole: what holdfast.h promises of a view. What the agent has open for
/// it goes with the connection; the next load opens it again, at the same version. Thread-safe.
class View {
 public:
  /// Asks the agent for `wanted` or the newest version. `link` outlives it.
  static Result<std::unique_ptr<View>> Open(AgentLink& link, const ClientOptions& options,
                                            std::optional<VersionId> wanted,
                                            MonotonicTime deadline);
  /// For Open().
  View(AgentLink& link, const ClientOptions& options) : link_(link), options_(options) {}
  ~View();

  const holdfast_view_info& info() const { return info_; }
  /// `differences` gets what makes it FailedPrecondition, one sentence each.
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
  /// What the threads of one load share.
  struct Reading;
  Status ReadUnits(Reading& reading, uint32_t place);

  AgentLink& link_;
  const ClientOptions& options_;

  // Constant once it is open.
  std::vector<ViewShard> shards_;  // by rank
  PieceIndex pieces_;
  std::vector<holdfast_piece> piece_table_;
  std::vector<std::string> extra_bytes_;
  std::vector<holdfast_rank_extra> extra_table_;
  holdfast_view_info info_{};

  Mutex mutex_;                                      // one load at a time
  ViewMapping mapping_ HOLDFAST_GUARDED_BY(mutex_);  // its places are written by the agent
  uint32_t number_ HOLDFAST_GUARDED_BY(mutex_) = 0;  // at the agent
  uint64_t epoch_ HOLDFAST_GUARDED_BY(mutex_) = 0;   // of the connection; 0: not open there
  std::optional<uint32_t> own_slot_ HOLDFAST_GUARDED_BY(mutex_);  // has this rank's own shard
};

}  // namespace holdfast::client
