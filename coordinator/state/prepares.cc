#include "coordinator/state/prepares.h"

#include <fmt/format.h>

namespace holdfast::coord {

namespace {
/// Whether the node that should have got the shard failed, and not the source: memory has no I/O
/// errors, and those of other nodes are DataLoss, so this one is of the disk that the shard was
/// written to.
bool IsOfTargetDisk(const PendingPrepare& pending, ErrorCode code) {
  return code == ErrorCode::kIoError && pending.into == Tier::kDisk &&
         (pending.source.tier == Tier::kMemory ||
          (pending.source.node != kNoNode && pending.source.node != pending.target));
}
}  // namespace

void RecordSourceFailure(Context& context, Job& job, const PendingPrepare& pending,
                         const Status& why) {
  const std::string shard = ToString(ShardKey{job.name, pending.version, pending.rank});
  const bool source_lost = IsSourceLost(why.code()) && !IsOfTargetDisk(pending, why.code());
  if (pending.repair && !source_lost) return;  // the repair is tried again
  if (pending.source == kDecode) {
    return RecordFinding(
        context, job.name, pending.target,
        Status(why.code(), fmt::format("{} decoded from its group: {}", shard, why.message())));
  }
  const std::string text = fmt::format("{} at {} on {}: {}", shard, ToString(pending.source.tier),
                                       PlaceName(context, pending.source), why.message());
  auto found = job.versions.find(pending.version);
  const bool lost = found != job.versions.end() && source_lost;
  // The damage is known already.
  if (lost && found->second.Damaged(pending.rank, pending.source) != nullptr) return;
  RecordFinding(context, job.name, pending.target, Status(why.code(), text));
  if (!lost) return;
  VersionState& version = found->second;
  const bool there = version.RemoveReplica(pending.rank, pending.source);
  if (why.code() == ErrorCode::kNotFound) return;
  version.damaged.push_back({pending.rank, pending.source, /*readable=*/there});
  version.damage_texts.push_back(text);
}

bool IsSourceLost(ErrorCode code) {
  return code == ErrorCode::kDataLoss || code == ErrorCode::kIoError ||
         code == ErrorCode::kNotFound;
}

uint64_t AddPrepare(Context& context, PendingPrepare prepare) {
  const uint64_t request = ++context.cluster.next_prepare;
  context.cluster.pending_prepares[request] = std::move(prepare);
  return request;
}

std::optional<PendingPrepare> TakePrepare(Context& context, NodeIndex node, uint64_t request) {
  auto found = context.cluster.pending_prepares.find(request);
  if (found == context.cluster.pending_prepares.end() || found->second.target != node) {
    return std::nullopt;
  }
  PendingPrepare prepare = std::move(found->second);
  context.cluster.pending_prepares.erase(found);
  return prepare;
}

}  // namespace holdfast::coord
