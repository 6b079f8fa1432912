#include "cli/shards/shard_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/core/interrupt.h"
#include "cli/core/text.h"

namespace holdfast::cli {

namespace {

/// Bytes of one request. Agents serve few readers at a time, so no request lasts long.
constexpr uint64_t kWindowBytes = 16 * kChunkBytes;

SourceList OpenAll(RestoreSource& source, const std::vector<ShardSource>& replicas) {
  SourceList sources;
  for (const ShardSource& replica : replicas) sources.push_back(source.Open(replica));
  return sources;
}

}  // namespace

ShardReader::ShardReader(RestoreSource& source, ShardSource& shard, Progress& progress)
    : expected_(shard.expected),
      shard_(shard),
      progress_(progress),
      replicas_(source.ReplicasOf(shard)),
      sources_(OpenAll(source, replicas_)),
      selector_(expected_.key, expected_.digest, sources_, NoDamageReporter()) {
  selector_.SetStopping(Interrupt::requested);
  selector_.SetFailureObserver([this](const ChunkSource& failed, const Status& how,
                                      const ChunkSource* next) { OnFailure(failed, how, next); });
}

void ShardReader::OnFailure(const ChunkSource& failed, const Status& how, const ChunkSource* next) {
  if (failure_ == ErrorCode::kOk || how.code() == ErrorCode::kDataLoss) failure_ = how.code();
  if (next == nullptr || Interrupt::requested()) return;
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].get() == next) shard_ = replicas_[i];
  }
  if (std::find(failed_.begin(), failed_.end(), &failed) != failed_.end()) return;
  failed_.push_back(&failed);
  progress_.Clear();
  PrintMessage(Printable(fmt::format("rank {}: the replica at tier {} failed ({}); trying {}",
                                     expected_.key.rank.value, failed.where(), how.message(),
                                     next->where())));
}

Status ShardReader::Explain(const Status& status) const {
  HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
  if (status.ok() || failure_ == ErrorCode::kOk) return status;
  return Status(failure_, status.message());
}

Status ShardReader::Read(uint64_t begin, uint64_t end, const ChunkSink& sink) {
  if (!seal_) {
    const auto seal = selector_.ReadSeal();
    if (!seal) return Explain(seal.error());
    HOLDFAST_RETURN_IF_ERROR(expected_.Check(*seal));
    seal_ = *seal;
  }
  for (uint64_t at = begin; at < end;) {
    window_.resize(std::min(kWindowBytes, end - at));
    std::vector<WantedChunk> chunks = ChunksOf(*seal_, at / kChunkBytes, window_);
    failure_ = ErrorCode::kOk;
    HOLDFAST_RETURN_IF_ERROR(Explain(selector_.Read(*seal_, chunks)));
    for (const WantedChunk& chunk : chunks) {
      HOLDFAST_RETURN_IF_ERROR(sink(chunk.index * kChunkBytes, chunk.into));
    }
    at += window_.size();
  }
  return Status::Ok();
}

}  // namespace holdfast::cli
