#include "agent/chunks/peer_chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/clock.h"
#include "base/crash_point.h"
#include "base/endpoint.h"

namespace holdfast::agent {
namespace {

// Nodes answer an open at once, so this bounds the wait for a node that does not respond.
constexpr std::chrono::seconds kAnswerTime(5);
// A read from a node that sends nothing for this long fails. The pace of the node, which many
// readers share, delays a unit by less.
constexpr std::chrono::seconds kStall(40);
constexpr std::chrono::seconds kBusyTime(20);
constexpr std::chrono::milliseconds kBusyPause(200);

/// IoError is reserved for this node's devices, and DeadlineExceeded for the caller's deadline.
Status AsPeerError(const Status& status) {
  if (status.code() == ErrorCode::kIoError) return DataLossError(status.message());
  if (status.code() == ErrorCode::kDeadlineExceeded) return UnavailableError(status.message());
  return status;
}

/// Counts a read while it exists.
class CountedRead {
 public:
  explicit CountedRead(std::atomic<uint32_t>* reads) : reads_(reads) {
    if (reads_ != nullptr) ++*reads_;
  }
  ~CountedRead() {
    if (reads_ != nullptr) --*reads_;
  }
  CountedRead(const CountedRead&) = delete;
  CountedRead& operator=(const CountedRead&) = delete;

 private:
  std::atomic<uint32_t>* const reads_;
};

}  // namespace

PeerRequest PeerChunks::RequestFor(PeerRequestKind kind) const {
  PeerRequest request;
  request.kind = kind;
  request.job = key_.job;
  request.version = key_.version;
  request.rank = key_.rank;
  request.incarnation = incarnation_;
  request.sealed = true;
  request.node = place_.node;
  return request;
}

Status PeerChunks::Explain(const Status& status) const {
  const auto endpoint = ParseEndpoint(place_.address);
  if (status.code() != ErrorCode::kUnavailable || !endpoint || !endpoint->IsLocal()) return status;
  return status.WithContext(
      fmt::format("node {} serves its peers at {}, which only its own machine reaches; if it is "
                  "another machine, set peers.listen there",
                  place_.node, place_.address));
}

Result<std::unique_ptr<PeerStream>> PeerChunks::Open(const PeerRequest& request) {
  if (place_.address.empty()) {
    return Fail(UnavailableError("the node has reported no peer address"));
  }
  const Clock::TimePoint until = clock_.Now() + kBusyTime;
  for (;;) {
    auto stream = transport_.Open(place_.address, request, clock_.Now() + kAnswerTime);
    if (stream) return stream;
    if (stream.error().code() != ErrorCode::kResourceExhausted) {
      return Fail(Explain(AsPeerError(stream.error())));
    }
    if (clock_.Now() >= until) return Fail(UnavailableError(stream.error().message()));
    clock_.SleepFor(kBusyPause);
  }
}

Result<ShardSeal> PeerChunks::ReadSeal() {
  PeerRequest request = RequestFor(PeerRequestKind::kSeal);
  request.bytes = kSealBytesMax;
  HOLDFAST_ASSIGN_OR_RETURN(auto stream, Open(request));
  std::vector<std::byte> record;
  std::vector<std::byte> unit(kPeerUnitBytes);
  for (;;) {
    const auto got = stream->Read(unit, clock_.Now() + kStall);
    if (!got) return Fail(AsPeerError(got.error()));
    if (*got == 0) return DecodeSeal(record);
    record.insert(record.end(), unit.begin(), unit.begin() + static_cast<ptrdiff_t>(*got));
  }
}

Status PeerChunks::Read(const ShardSeal& seal, std::span<WantedChunk> chunks) {
  HOLDFAST_RETURN_IF_ERROR(CheckWanted(key_, seal, chunks));
  const CountedRead counted(reads_.get());
  return ReadRuns(chunks, [&](std::span<WantedChunk> run) { return ReadRun(seal, run); });
}

Status PeerChunks::ReadRun(const ShardSeal& seal, std::span<WantedChunk> run) {
  PeerRequest request = RequestFor(PeerRequestKind::kShard);
  request.digest = seal.digest();
  request.offset = run.front().index * kChunkBytes;
  for (const WantedChunk& chunk : run) request.bytes += chunk.into.size();
  HOLDFAST_ASSIGN_OR_RETURN(auto stream, Open(request));
  for (WantedChunk& chunk : run) {
    HOLDFAST_RETURN_IF_ERROR(ReadChunk(*stream, chunk.into));
    chunk.done = IsChunk(seal, chunk.index, chunk.into);
    if (!chunk.done) return BadChunkError(seal, chunk.index);
    HOLDFAST_CRASH_POINT("agent.mid_restore");
  }
  return Status::Ok();
}

Status PeerChunks::ReadChunk(PeerStream& stream, std::span<std::byte> into) const {
  for (size_t done = 0; done < into.size();) {
    const auto got = stream.Read(into.subspan(done), clock_.Now() + kStall);
    if (!got && got.error().code() == ErrorCode::kDeadlineExceeded) {
      return UnavailableError(fmt::format("it sent nothing for {} s", kStall.count()));
    }
    if (!got) return AsPeerError(got.error());
    if (*got == 0) return DataLossError("it ended the shard before the last chunk");
    done += *got;
  }
  return Status::Ok();
}

}  // namespace holdfast::agent
