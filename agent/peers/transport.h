#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "storage/base/clock.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

// What nodes ask of each other, and the interfaces on both sides of the wire. All transfers are
// pulls: back-pressure, time-outs and restarts are the reader's business.

namespace holdfast::agent {

/// Objects travel in units of at most this many bytes, each checked by itself.
inline constexpr uint64_t kPeerUnitBytes = 1ULL << 20;
/// Longest PeerRequest::group.
inline constexpr size_t kPeerGroupBytesMax = 1ULL << 20;

/// The numbers are stable (wire).
enum class PeerRequestKind : uint8_t { kShard = 1, kSeal = 2, kParityRow = 3, kDecode = 4 };

/// Bytes of one object of a version, asked of the node that has or makes it.
struct PeerRequest {
  PeerRequestKind kind = PeerRequestKind::kShard;
  std::string job;
  VersionId version;
  /// The asker's current incarnation of the job; a source refuses older ones as Fenced.
  Incarnation incarnation;
  Rank rank;            // kShard, kSeal: whose; kParityRow, kDecode: unused
  uint32_t stripe = 0;  // kParityRow, kDecode
  uint32_t index = 0;   // kParityRow: which parity; kDecode: which segment of the stripe
  uint64_t offset = 0;  // of the image (kShard), the seal's encoding (kSeal) or the segment
  uint64_t bytes = 0;   // at most so many; the object may end before
  std::string group;    // kDecode: the group, in the pipeline's own encoding
  bool operator==(const PeerRequest&) const = default;
};

/// "shard job/3-120/rank-7 [0, 1048576)": for logs and errors.
std::string ToString(const PeerRequest& request);

/// One object that a node serves to its peers; implemented by the pipeline. Read and the destructor
/// are called by one thread at a time, Cancel by any.
class PeerReader {
 public:
  virtual ~PeerReader() = default;
  /// Waits until bytes [offset, offset + bytes) are final and returns them; shorter or empty where
  /// the object ends. `bytes` is 1 to kPeerUnitBytes; consecutive calls go forward without gaps.
  /// The span is valid until the next call. Cancelled or Aborted when the bytes will never be;
  /// DeadlineExceeded.
  virtual Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                                  Clock::TimePoint deadline) = 0;
  /// Nobody wants the bytes any more: ends a Read that waits, now and later, as Cancelled. Must not
  /// block. A reader that does not override it keeps its thread until its bytes come or the
  /// server's source timeout passes.
  virtual void Cancel() {}
};

/// What a node has to serve. Thread-safe.
class PeerSource {
 public:
  virtual ~PeerSource() = default;
  /// Says whether the object is or will be here; does not wait for its bytes. The request has been
  /// checked for form: a valid job name, known kind, no overflow of offset + bytes.
  virtual Result<std::unique_ptr<PeerReader>> Open(const PeerRequest& request) = 0;
};

/// The asking side of one request. Read and the destructor are called by one thread at a time,
/// Cancel by any. A stream that is destroyed before its end gives the transfer up.
class PeerStream {
 public:
  virtual ~PeerStream() = default;
  /// The next bytes, checked, into the front of `into`; 0: the end. Where `into` has kPeerUnitBytes
  /// or all that is left of the request, they are received there directly; a smaller one is filled
  /// from a buffer. DataLoss: bytes that differ; Unavailable: the peer is gone; DeadlineExceeded;
  /// Cancelled; or the source's own error. After an error `into` is unspecified and the stream is
  /// over: ask again from where the good bytes end.
  virtual Result<size_t> Read(std::span<std::byte> into, Clock::TimePoint deadline) = 0;
  /// Ends a Read, now and later, as Cancelled.
  virtual void Cancel() = 0;
};

/// How a node reaches its peers. Thread-safe; outlives its streams.
class PeerTransport {
 public:
  virtual ~PeerTransport() = default;
  /// Asks the node at `address`. OK: its source has opened the object. Unavailable: nobody answers
  /// there; ResourceExhausted: it serves as many as it may; PermissionDenied: one side did not
  /// prove itself; DeadlineExceeded; or the source's own error.
  virtual Result<std::unique_ptr<PeerStream>> Open(const std::string& address,
                                                   const PeerRequest& request,
                                                   Clock::TimePoint deadline) = 0;
};

}  // namespace holdfast::agent
