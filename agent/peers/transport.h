#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"

// The requests between nodes, and the interfaces on both sides of the wire. All transfers are
// pulls: the reader is responsible for back-pressure, timeouts and retries.

namespace holdfast::agent {

/// Objects are sent in units of at most this many bytes, each with its own checksum.
inline constexpr uint64_t kPeerUnitBytes = 1ULL << 20;
/// The number of bytes that kProbe requests can read.
inline constexpr uint64_t kPeerProbeBytesMax = 64ULL << 20;
/// Longest PeerRequest::group.
inline constexpr size_t kPeerGroupBytesMax = 1ULL << 20;

/// The values are stable (wire format).
enum class PeerRequestKind : uint8_t {
  kShard = 1,
  kSeal = 2,
  kParityRow = 3,
  kDecode = 4,
  kProbe = 5,      // bytes of no job, to measure the network; job and version are not used
  kNodeIndex = 6,  // the index of the node's shards of the version
};

/// A request for bytes of one object of a version, sent to the node that has or computes it.
struct PeerRequest {
  PeerRequestKind kind = PeerRequestKind::kShard;
  std::string job;
  VersionId version;
  /// The client's current incarnation of the job; a source refuses older ones as Fenced.
  Incarnation incarnation;
  Rank rank;            // kShard, kSeal: of the shard; kParityRow, kDecode: unused
  uint32_t stripe = 0;  // kParityRow, kDecode
  // kParityRow: of the parity row; kDecode: of the segment in the stripe; kNodeIndex: the world
  uint32_t index = 0;
  uint64_t offset = 0;  // of the image (kShard), the seal's encoding (kSeal) or the segment
  uint64_t bytes = 0;   // maximum; the object may end before
  /// kShard, kSeal: only of a sealed replica. Otherwise the source waits for a shard that is still
  /// being saved.
  bool sealed = false;
  uint64_t digest = 0;  // with `sealed`: that the replica must have; 0: any
  std::string group;    // kDecode: the group, kNodeIndex: the shards, in the pipeline's encoding
  /// The node that must answer, by the plan; empty: any. It is checked and not sent.
  std::string node = {};
  bool operator==(const PeerRequest&) const = default;
};

/// Returns a text for logs and errors: "shard job/3-120/rank-7 [0, 1048576)".
std::string ToString(const PeerRequest& request);

/// One object that a node serves to its peers; implemented by the pipeline. One thread at a time
/// calls Read() and the destructor; any thread may call Cancel().
class PeerReader {
 public:
  virtual ~PeerReader() = default;
  /// Blocks until bytes [offset, offset + bytes) are final and returns them; shorter or empty where
  /// the object ends. `bytes` is 1 to kPeerUnitBytes; consecutive calls go forward without gaps.
  /// The span is valid until the next call. Cancelled or Aborted when the bytes will never exist;
  /// DeadlineExceeded.
  virtual Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes,
                                                  Clock::TimePoint deadline) = 0;
  /// Makes a Read() that waits, and any later one that would wait, fail as Cancelled: the client no
  /// longer needs the bytes. Must not block. A reader that does not override it keeps its thread
  /// until its bytes are final or the server's source timeout has passed.
  virtual void Cancel() {}
};

/// The objects that a node can serve. Thread-safe.
class PeerSource {
 public:
  virtual ~PeerSource() = default;
  /// Opens an object that this node has or will have; does not wait for its bytes. The request has
  /// passed ValidateRequest(): a valid job name, a known kind, no overflow of offset + bytes.
  virtual Result<std::unique_ptr<PeerReader>> Open(const PeerRequest& request) = 0;
};

/// The client side of one request. One thread at a time calls Read() and the destructor; any thread
/// may call Cancel(). Destroying a stream before its end abandons the transfer.
class PeerStream {
 public:
  virtual ~PeerStream() = default;
  /// Reads the next bytes, verified, into the front of `into` and returns their number; 0: the end.
  /// If `into` has kPeerUnitBytes, or the rest of the request, the bytes are received directly into
  /// it; a smaller span is filled from a buffer. DataLoss: bytes do not match their checksum;
  /// Unavailable: the connection is lost; DeadlineExceeded; Cancelled; or the source's error. After
  /// an error the content of `into` is unspecified and the stream cannot be used any more: open
  /// another one at the end of the good bytes.
  virtual Result<size_t> Read(std::span<std::byte> into, Clock::TimePoint deadline) = 0;
  /// Makes a Read() in progress, and all later ones, fail as Cancelled.
  virtual void Cancel() = 0;
};

/// Opens streams from peers. Thread-safe; must outlive its streams.
class PeerTransport {
 public:
  virtual ~PeerTransport() = default;
  /// Sends the request to the node at `address`. OK: the node's source has opened the object.
  /// Unavailable: no node answers there; ResourceExhausted: the node is at its connection limit;
  /// PermissionDenied: authentication of one side failed; DeadlineExceeded; or the source's error.
  virtual Result<std::unique_ptr<PeerStream>> Open(const std::string& address,
                                                   const PeerRequest& request,
                                                   Clock::TimePoint deadline) = 0;
};

}  // namespace holdfast::agent
