#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "storage/format/chunk.h"
#include "storage/format/seal.h"

namespace holdfast {

/// What it costs to read a chunk from a source. Readers try cheaper sources first.
enum class SourceCost : uint8_t {
  kMemory = 0,      // of this node
  kPeerMemory = 1,  // of another node
  kDisk = 2,        // of this node
  kPeerDisk = 3,    // of another node
  kDecode = 4,      // by the parity group, which reads several chunks for each one
  kRemote = 5,      // outside the cluster
};

/// A chunk that a reader requests, and its buffer.
struct WantedChunk {
  uint64_t index = 0;
  std::span<std::byte> into;  // as long as the chunk
  uint64_t slack = 0;         // bytes after `into` that a source may overwrite
  bool done = false;          // `into` has the verified bytes
};

/// One place that may have a replica of one shard. A source is cheap to make: it opens nothing
/// before its first call. Thread-safe; calls block.
///
/// A subclass checks every chunk with IsChunk() before it sets `done`, and reports a bad one as
/// BadChunkError(). Nothing above a source checks bytes again. Errors do not name the place;
/// callers add where().
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;

  virtual SourceCost cost() const = 0;
  /// Returns the place of the bytes, for messages: "in this node's memory", "on node n3".
  virtual std::string where() const = 0;
  /// Returns how many reads of the same place are in progress. Of sources of equal cost, the one
  /// with the fewest is read.
  virtual uint32_t load() const { return 0; }
  /// Returns the tier, if the replica is one of this node, so that damage of it is reported.
  virtual std::optional<Tier> local_tier() const { return std::nullopt; }

  /// Returns the seal of the replica. NotFound: the place has no replica.
  virtual Result<ShardSeal> ReadSeal() = 0;
  /// Reads those of `chunks` that are not done, and sets `done` of each good one. `chunks` are
  /// ascending. Returns OK when all are done. DataLoss: chunks are bad, and all others are done.
  /// NotFound: the place has no replica of the image that `seal` describes. After any other error
  /// the source stops, since its next chunks would fail as well.
  virtual Status Read(const ShardSeal& seal, std::span<WantedChunk> chunks) = 0;
};

/// Returns InvalidArgument unless the seal is of `key`, and each of `chunks` is one of the image
/// and has a buffer of its length. Each source checks this first.
Status CheckWanted(const ShardKey& key, const ShardSeal& seal, std::span<const WantedChunk> chunks);

/// Returns the chunks of the image from chunk `first` on, with consecutive parts of `into` as
/// buffers. `into` ends where a chunk ends. `slack` is that of the last chunk.
std::vector<WantedChunk> ChunksOf(const ShardSeal& seal, uint64_t first, std::span<std::byte> into,
                                  uint64_t slack = 0);

/// Reads consecutive chunks in order, and sets `done` of the good ones. Stops at the first failure.
using RunReader = std::function<Status(std::span<WantedChunk> run)>;
/// Implements ChunkSource::Read() for a place that sends consecutive chunks as a stream: calls
/// `read` for each run of chunks that are not done, and again after each bad chunk.
Status ReadRuns(std::span<WantedChunk> chunks, const RunReader& read);

}  // namespace holdfast
