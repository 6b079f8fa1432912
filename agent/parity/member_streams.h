#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "agent/peers/transport.h"
#include "storage/base/mutex.h"
#include "storage/format/seal.h"
#include "storage/parity/group_plan.h"

namespace holdfast::agent {

/// Ends from any thread what is being read from peers, now and later. Thread-safe.
class Cancellation {
 public:
  void Cancel(Status why);
  /// OK until cancelled.
  Status status() const;
  /// While registered, Cancel() also cancels the stream. Cancelled: it is too late.
  Status Register(PeerStream* stream);
  void Unregister(PeerStream* stream);

 private:
  mutable Mutex mutex_;
  Status why_ HOLDFAST_GUARDED_BY(mutex_);
  std::set<PeerStream*> streams_ HOLDFAST_GUARDED_BY(mutex_);
};

/// One version of a job as the members of its group have it, read for one purpose. All references
/// outlive it.
struct GroupAccess {
  const GroupPlan& plan;
  std::string self;  // this node's name; what it has itself goes over no wire
  std::string job;
  VersionId version;
  Incarnation incarnation;  // current one of the job
  PeerSource& local;
  PeerTransport& transport;
  Cancellation& cancellation;

  /// Opens what `request` names (kind, rank, stripe, index, offset, bytes, group; the rest is
  /// filled in) at a member. Unavailable names the member.
  Result<std::unique_ptr<PeerStream>> Open(uint32_t position, PeerRequest request,
                                           Clock::TimePoint deadline) const;
};

/// Reads a range of a member's node image from front to back; what its shards do not fill is zeros
/// and not sent. Thread-compatible.
class NodeImageReader {
 public:
  /// The node-image bytes [begin, end) of the member at `position`.
  NodeImageReader(const GroupAccess& access, uint32_t position, uint64_t begin, uint64_t end);
  ~NodeImageReader();
  NodeImageReader(const NodeImageReader&) = delete;
  NodeImageReader& operator=(const NodeImageReader&) = delete;

  /// The next into.size() bytes; past the end zeros. False: all of them are zeros, and nothing was
  /// written.
  Result<bool> Next(std::span<std::byte> into, Clock::TimePoint deadline);

 private:
  Result<size_t> ReadPiece(std::span<std::byte> into, Clock::TimePoint deadline);
  void CloseStream();

  const GroupAccess& access_;
  const uint32_t position_;
  const std::vector<GroupPlan::Piece> pieces_;
  size_t piece_ = 0;
  uint64_t at_ = 0;  // in the range
  std::unique_ptr<PeerStream> stream_;
  bool piece_ended_ = false;  // the shard ends before its room does
};

/// Everything of one object at a member; InvalidArgument over `bytes_max`.
Result<std::vector<std::byte>> ReadWhole(const GroupAccess& access, uint32_t position,
                                         PeerRequest request, uint64_t bytes_max,
                                         Clock::TimePoint deadline);

/// The seals of all shards of the group's ranks, from the members that have them; waits for those
/// that are still being saved.
Result<std::vector<ShardSeal>> CollectSeals(const GroupAccess& access, Clock::TimePoint deadline);

}  // namespace holdfast::agent
