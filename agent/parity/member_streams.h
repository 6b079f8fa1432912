#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "agent/peers/transport.h"
#include "base/mutex.h"
#include "storage/format/seal.h"
#include "storage/parity/group_plan.h"

namespace holdfast::agent {

/// Cancels current and later reads from peers. Thread-safe.
class Cancellation {
 public:
  void Cancel(Status why);
  /// Returns OK until cancelled, then the reason.
  Status status() const;
  /// While `stream` is registered, Cancel() cancels it. Returns the reason if already cancelled.
  Status Register(PeerStream* stream);
  void Unregister(PeerStream* stream);

 private:
  mutable Mutex mutex_;
  Status why_ HOLDFAST_GUARDED_BY(mutex_);
  std::set<PeerStream*> streams_ HOLDFAST_GUARDED_BY(mutex_);
};

/// Access to one version of a job at the members of its group. All references must outlive it.
struct GroupAccess {
  const GroupPlan& plan;
  std::string self;  // this node's name; its objects are read locally
  std::string job;
  VersionId version;
  Incarnation incarnation;  // current one of the job
  PeerSource& local;
  PeerTransport& transport;
  Cancellation& cancellation;
  Clock& clock;

  /// Opens an object at a member. `request` has kind, rank, stripe, index, offset, bytes and group;
  /// the other fields are filled in. Errors name the member; Unavailable: it has no address.
  Result<std::unique_ptr<PeerStream>> Open(uint32_t position, PeerRequest request,
                                           Clock::TimePoint deadline) const;
};

/// Reads a range of a member's node image from front to back. Space that its shards do not fill
/// counts as zeros and is not sent. Thread-compatible.
class NodeImageReader {
 public:
  /// Reads node-image bytes [begin, end) of the member at `position`.
  NodeImageReader(const GroupAccess& access, uint32_t position, uint64_t begin, uint64_t end);
  ~NodeImageReader();
  NodeImageReader(const NodeImageReader&) = delete;
  NodeImageReader& operator=(const NodeImageReader&) = delete;

  /// Reads the next into.size() bytes; past the end they are zeros. Returns false, and leaves
  /// `into` unchanged, when all of them are zeros.
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
  bool piece_ended_ = false;  // the shard ends before its slot does
};

/// Reads a complete object at a member. InvalidArgument if it exceeds `bytes_max`.
Result<std::vector<std::byte>> ReadObject(const GroupAccess& access, uint32_t position,
                                          PeerRequest request, uint64_t bytes_max,
                                          Clock::TimePoint deadline);

/// Returns the seals of all shards of the group's ranks from the members that have them. Waits for
/// shards that are still being saved.
Result<std::vector<ShardSeal>> CollectSeals(const GroupAccess& access, Clock::TimePoint deadline);

}  // namespace holdfast::agent
