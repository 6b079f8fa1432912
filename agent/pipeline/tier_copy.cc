#include "agent/pipeline/tier_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "agent/pipeline/sparse_image.h"
#include "base/crash_point.h"
#include "base/log.h"
#include "storage/chunks/tier_chunks.h"

namespace holdfast::agent {
namespace {
// Each window is written before the next one is read, which bounds the memory of a copy.
constexpr uint64_t kWindowBytes = 16 * kChunkBytes;

/// Opens the replica on disk. Reports a replica that is lost or damaged.
Result<std::unique_ptr<ShardChunks>> OpenOnDisk(const RestoreTools& tools,
                                                const PrepareTask& prepare) {
  const ShardKey key = prepare.identity.key();
  auto chunks = tools.volume.OpenChunks(key);
  if (!chunks && chunks.error().code() == ErrorCode::kNotFound) {
    tools.link.Report(RemovedReplica{key, Tier::kDisk});
  }
  if (!chunks) return chunks;
  HOLDFAST_RETURN_IF_ERROR(CheckDigest((*chunks)->seal(), prepare.digest));
  return chunks;
}

/// Every failure to write is a failure of the tier. NotFound, for example, means that a directory
/// was removed.
Status WriteError(const Status& status) {
  if (status.ok() || status.code() == ErrorCode::kOutOfSpace ||
      status.code() == ErrorCode::kAlreadyExists) {
    return status;
  }
  return UnavailableError(status.message());
}

Status Write(TierStore& store, ShardChunks& source, const std::function<bool()>& stopping,
             Status* read_error) {
  const ShardSeal& seal = source.seal();
  HOLDFAST_ASSIGN_OR_RETURN(SparseImage memory,
                            SparseImage::Make(RoundUp(seal.image_bytes, kBlockBytes)));
  const std::span<std::byte> image = memory.bytes().first(seal.image_bytes);
  HOLDFAST_ASSIGN_OR_RETURN(const auto writer, store.CreateShard(seal.identity, image));
  for (uint64_t chunk = 0; chunk < seal.chunk_crcs.size(); ++chunk) {
    const auto bytes = source.Read(chunk);
    if (!bytes) {
      *read_error = bytes.error();
      return bytes.error();
    }
    const uint64_t at = chunk * kChunkBytes;
    std::memcpy(image.data() + at, bytes->data(), bytes->size());
    const uint64_t end = at + bytes->size();
    if (end % kWindowBytes != 0 && end != image.size()) continue;
    if (stopping()) return CancelledError("the agent is stopping");
    HOLDFAST_RETURN_IF_ERROR(writer->Advance(end));
    HOLDFAST_ASSIGN_OR_RETURN(const auto written, writer->Settle());
    for (const auto& [begin, last] : written) memory.Drop(begin, last);
    HOLDFAST_CRASH_POINT("agent.mid_tier_copy");
  }
  ShardSeal published = seal;
  published.parts.clear();
  published.image_header.clear();
  return writer->Publish(std::move(published));
}
}  // namespace

Status CopyToTier(const RestoreTools& tools, const PrepareTask& prepare,
                  const std::function<bool()>& stopping) {
  const ShardKey key = prepare.identity.key();
  TierStore* store = tools.stores[prepare.into];
  if (store == nullptr) {
    return FailedPreconditionError(
        fmt::format("node {} has no tier {}", tools.node(), ToString(prepare.into)));
  }
  auto source = OpenOnDisk(tools, prepare);
  Status read_error = source ? Status::Ok() : source.error();
  Status status = read_error;
  if (source) {
    status = Write(*store, **source, stopping, &read_error);
    if (status.code() == ErrorCode::kAlreadyExists) {
      // An earlier copy was published, but its report was lost. Other bytes under this name are
      // left by nothing that the coordinator knows; they are kept in quarantine.
      const auto stored = store->ReadSeal(key);
      if (stored && stored->digest() == (*source)->seal().digest()) {
        status = Status::Ok();
      } else if (!stored || store->Quarantine(key, "another image has this name").ok()) {
        status = UnavailableError(status.message() + ", with other bytes");
      }
    }
  }
  if (!read_error.ok()) {
    if (read_error.code() == ErrorCode::kDataLoss) {
      tools.damage.OnDamaged(key, Tier::kDisk, read_error);
    }
    return read_error;
  }
  if (!status.ok()) return WriteError(status);
  const ShardSeal& seal = (*source)->seal();
  Log(LogLevel::kDebug, "ShardCopied",
      {Kv("shard", ToString(key)), Kv("tier", ToString(prepare.into)),
       Kv("bytes", seal.image_bytes)});
  tools.link.Report(
      StoredReplica{seal.identity, prepare.into, seal.digest(), seal.image_bytes, "", seal.life});
  return Status::Ok();
}

}  // namespace holdfast::agent
