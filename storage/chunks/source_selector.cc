#include "storage/chunks/source_selector.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace holdfast {
namespace {

bool AllDone(std::span<const WantedChunk> chunks) {
  return std::all_of(chunks.begin(), chunks.end(), [](const WantedChunk& c) { return c.done; });
}

}  // namespace

DamageReporter& NoDamageReporter() {
  class Ignore final : public DamageReporter {
    bool OnDamaged(const ShardKey&, Tier, const Status&) override { return false; }
    void OnLost(const ShardKey&, Tier, const Status&) override {}
  };
  static Ignore ignore;
  return ignore;
}

SourceSelector::SourceSelector(ShardKey key, uint64_t digest, const SourceList& sources,
                               DamageReporter& damage)
    : key_(std::move(key)), digest_(digest), damage_(damage) {
  for (const auto& source : sources) candidates_.push_back({source.get()});
  // Other threads change the load, so it is read once.
  for (Candidate& candidate : candidates_) candidate.load = candidate.source->load();
  std::stable_sort(
      candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
        return std::pair(a.source->cost(), a.load) < std::pair(b.source->cost(), b.load);
      });
}

Status SourceSelector::CheckStopping() const {
  return stopping_ && stopping_() ? CancelledError("the read was stopped") : Status::Ok();
}

Status SourceSelector::CheckSeal(const ShardSeal& seal, const ChunkSource& source) const {
  if (seal.identity.key() != key_) {
    return DataLossError(fmt::format("it has the seal of {}", ToString(seal.identity.key())));
  }
  const Status digest = CheckDigest(seal, digest_);
  if (digest.ok()) return digest;
  // No chunk of another image is of use, not even for a decode.
  if (const auto tier = source.local_tier()) {
    damage_.OnLost(key_, *tier, digest.WithContext(source.where()));
  }
  return digest;
}

void SourceSelector::Note(Candidate& candidate, const Status& status, Status& errors) {
  any_failed_ = true;
  const Status named = status.WithContext(candidate.source->where());
  const bool damaged = status.code() == ErrorCode::kDataLoss;
  candidate.absent = candidate.absent || !damaged;
  const auto tier = candidate.source->local_tier();
  if (damaged && tier && !candidate.reported) {
    candidate.reported = true;
    damage_.OnDamaged(key_, *tier, named);
  }
  // That a place has no replica is often known only here.
  const bool unknown = status.code() == ErrorCode::kNotFound;
  Log(unknown ? LogLevel::kDebug : LogLevel::kWarn, "ChunkSourceFailed",
      {Kv("shard", ToString(key_)), Kv("error", named.ToString())});
  if (observer_) observer_(*candidate.source, status, After(candidate));
  const std::string before = errors.ok() ? "" : errors.message() + "; ";
  errors = Status(status.code(), before + named.message());
}

const ChunkSource* SourceSelector::After(const Candidate& candidate) const {
  for (const Candidate* next = &candidate + 1; next < candidates_.data() + candidates_.size();
       ++next) {
    if (!next->absent) return next->source;
  }
  return nullptr;
}

Result<ShardSeal> SourceSelector::ReadSeal() {
  Status errors;
  for (Candidate& candidate : candidates_) {
    if (candidate.absent) continue;
    HOLDFAST_RETURN_IF_ERROR(CheckStopping());
    auto seal = candidate.source->ReadSeal();
    Status status = seal ? CheckSeal(*seal, *candidate.source) : seal.error();
    if (status.ok()) return seal;
    // The chunks of a replica without the right seal cannot be used; its damage is known by now.
    if (seal) candidate.reported = true;
    Note(candidate, status, errors);
    candidate.absent = true;
  }
  if (errors.ok()) errors = UnavailableError("no replica of " + ToString(key_) + " is available");
  return Fail(errors);
}

Status SourceSelector::Read(const ShardSeal& seal, std::span<WantedChunk> chunks) {
  Status errors;
  for (Candidate& candidate : candidates_) {
    if (AllDone(chunks)) return Status::Ok();
    if (candidate.absent) continue;
    HOLDFAST_RETURN_IF_ERROR(CheckStopping());
    const Status status = candidate.source->Read(seal, chunks);
    if (!status.ok()) Note(candidate, status, errors);
  }
  if (AllDone(chunks)) return Status::Ok();
  if (errors.ok()) errors = UnavailableError("no replica of " + ToString(key_) + " is available");
  return errors;
}

}  // namespace holdfast
