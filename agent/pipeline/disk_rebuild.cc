#include "agent/pipeline/disk_rebuild.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "agent/parity/rebuild.h"
#include "agent/pipeline/sealer.h"
#include "base/crash_point.h"
#include "base/log.h"
#include "storage/format/checksum.h"
#include "storage/format/image.h"
#include "storage/parity/parity_image.h"

namespace holdfast::agent {
namespace {

// Each window is decoded, checked and written before the next one, which bounds the memory.
constexpr uint64_t kWindowBytes = 64 * kChunkBytes;
// A window is divided into four ranges, which several members decode at the same time.
constexpr uint64_t kRangeBytes = kWindowBytes / 4;
constexpr std::chrono::minutes kWindowTime(5);

/// Address space for an image; only the pages in use take memory.
class SparseImage {
 public:
  static Result<SparseImage> Make(uint64_t bytes) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      return Fail(
          ErrnoStatus(errno, fmt::format("map {} bytes of address space for a shard", bytes)));
    }
    return SparseImage(std::span(static_cast<std::byte*>(memory), bytes));
  }
  ~SparseImage() {
    if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
  }
  SparseImage(SparseImage&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  SparseImage& operator=(SparseImage&&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  /// Frees the memory of the pages that are completely inside the range.
  void Drop(uint64_t begin, uint64_t end) {
    begin = RoundUp(begin, kBlockBytes);
    end -= std::min(end, end % kBlockBytes);
    if (begin < end) ::madvise(bytes_.data() + begin, end - begin, MADV_DONTNEED);
  }

 private:
  explicit SparseImage(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

/// Returns the parts of the seal that are known before the shard is decoded. A rank's seal comes
/// from the group and is complete; a parity seal has no checksums yet.
Result<ShardSeal> ExpectedSeal(const GroupAccess& access, const PrepareTask& prepare,
                               const RestoreTools& tools) {
  const ShardIdentity& identity = prepare.identity;
  if (!IsParity(identity.rank)) {
    HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal,
                              FetchSeal(access, identity.rank, Clock::Real().Now() + kWindowTime));
    if (seal.identity != identity) {
      return Fail(DataLossError("the group sent the seal of " + ToString(seal.identity.key()) +
                                " when asked for " + ToString(identity.key())));
    }
    seal.parts.clear();
    seal.image_header.clear();
    return seal;
  }
  const auto position = access.plan.PositionOf(tools.node);
  if (!position) {
    return Fail(InvalidArgumentError("node " + tools.node + " is not in the parity group"));
  }
  HOLDFAST_ASSIGN_OR_RETURN(const ParityImage image,
                            ParityImage::Make(access.plan, *position, identity));
  ShardSeal seal;
  seal.identity = identity;
  seal.image_bytes = image.image_bytes();
  seal.wall_nanos = tools.clock.WallNanos();
  return seal;
}

Status CheckDecodedDigest(const PrepareTask& prepare, const ShardSeal& seal) {
  if (prepare.digest == 0 || prepare.digest == seal.digest()) return Status::Ok();
  return DataLossError(
      fmt::format("{} was decoded with digest {:016x}; the committed one is {:016x}",
                  ToString(prepare.identity.key()), seal.digest(), prepare.digest));
}

/// Checks a window of a rank's shard against the seal. For a parity shard, adds the window's
/// checksums to the seal.
Status CheckWindow(ShardSeal& seal, uint64_t begin, std::span<const std::byte> window) {
  for (uint64_t at = 0; at < window.size(); at += kChunkBytes) {
    const uint64_t bytes = std::min<uint64_t>(kChunkBytes, window.size() - at);
    const uint32_t crc = Crc32c(window.subspan(at, bytes));
    const uint64_t chunk = (begin + at) / kChunkBytes;
    if (IsParity(seal.identity.rank)) {
      seal.chunk_crcs.push_back(crc);
    } else if (chunk >= seal.chunk_crcs.size() || seal.chunk_crcs[chunk] != crc) {
      return DataLossError(
          fmt::format("{} as decoded from its group: chunk {} does not match its checksum",
                      ToString(seal.identity.key()), chunk));
    }
  }
  return Status::Ok();
}

Status DecodeWindow(const GroupAccess& access, const ShardIdentity& identity, uint64_t begin,
                    std::span<std::byte> window) {
  std::vector<ImageRange> ranges;
  for (uint64_t at = 0; at < window.size(); at += kRangeBytes) {
    ranges.push_back(
        {begin + at, window.subspan(at, std::min<uint64_t>(kRangeBytes, window.size() - at))});
  }
  const Status status = DecodeRanges(
      access, identity, ranges, [](uint64_t) { HOLDFAST_CRASH_POINT("agent.mid_restore"); },
      Clock::Real().Now() + kWindowTime);
  // IoError is reserved for this node's devices; here it comes from another node's device.
  return status.code() == ErrorCode::kIoError ? DataLossError(status.message()) : status;
}

}  // namespace

Status RebuildOnDisk(const RestoreTools& tools, const PrepareTask& prepare) {
  if (!prepare.group) {
    return InvalidArgumentError("the directive for " + ToString(prepare.identity.key()) +
                                " names no parity group");
  }
  const ShardIdentity& identity = prepare.identity;
  Cancellation cancellation;
  const GroupAccess access =
      tools.Group(*prepare.group, identity.job, identity.version, prepare.current, cancellation);
  HOLDFAST_ASSIGN_OR_RETURN(ShardSeal seal, ExpectedSeal(access, prepare, tools));
  if (!IsParity(identity.rank)) HOLDFAST_RETURN_IF_ERROR(CheckDecodedDigest(prepare, seal));
  // The coordinator repeats the directive. Peers must not decode a shard each time while this node
  // has no room for it.
  if (tools.volume.FreeBytes() < seal.image_bytes) {
    return OutOfSpaceError(fmt::format("{} needs {} bytes on disk, and {} are free",
                                       ToString(identity.key()), seal.image_bytes,
                                       tools.volume.FreeBytes()));
  }
  HOLDFAST_ASSIGN_OR_RETURN(SparseImage memory,
                            SparseImage::Make(RoundUp(seal.image_bytes, kBlockBytes)));
  const std::span<std::byte> image = memory.bytes().first(seal.image_bytes);
  HOLDFAST_ASSIGN_OR_RETURN(auto writer, tools.volume.CreateShard(identity, image));
  bool header_checked = false;
  for (uint64_t at = 0; at < image.size();) {
    if (tools.stopping()) return CancelledError("the agent is stopping");
    const auto window = image.subspan(at, std::min<uint64_t>(kWindowBytes, image.size() - at));
    HOLDFAST_RETURN_IF_ERROR(DecodeWindow(access, identity, at, window));
    HOLDFAST_RETURN_IF_ERROR(CheckWindow(seal, at, window));
    at += window.size();
    if (!header_checked) {
      HOLDFAST_ASSIGN_OR_RETURN(const uint64_t header_bytes, HeaderBytes(image, image.size()));
      if (header_bytes > at) continue;
      HOLDFAST_RETURN_IF_ERROR(CheckImageIdentity(image, identity));
      header_checked = true;
    }
    HOLDFAST_RETURN_IF_ERROR(writer->Advance(at));
    HOLDFAST_ASSIGN_OR_RETURN(const auto written, writer->Settle());
    for (const auto& [begin, end] : written) memory.Drop(begin, end);
  }
  HOLDFAST_RETURN_IF_ERROR(CheckDecodedDigest(prepare, seal));
  HOLDFAST_RETURN_IF_ERROR(writer->Publish(seal));
  Log(LogLevel::kInfo, "ShardRebuilt",
      {Kv("shard", ToString(identity.key())), Kv("bytes", seal.image_bytes)});
  tools.link.Report(
      StoredReplica{identity, Tier::kDisk, seal.digest(), seal.image_bytes, "", seal.life});
  return Status::Ok();
}

}  // namespace holdfast::agent
