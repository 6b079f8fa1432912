#include "coordinator/detect/gather.h"

#include <algorithm>

namespace holdfast::detect {
namespace {
/// A member that reports an operation this much later will not report the missing one: records
/// arrive nearly in order.
constexpr uint64_t kPassedBy = 8;
}  // namespace

Gatherer::Gatherer(uint32_t members)
    : members_(members), open_max_(std::clamp<size_t>(8192 / members, 48, 128)) {}

GatheredOperation* Gatherer::Find(const CollectiveRecord& record) {
  for (GatheredOperation& open : open_) {
    if (open.sequence == record.sequence && open.kind == record.kind) return &open;
  }
  return nullptr;
}

GatheredOperation* Gatherer::Open(const CollectiveRecord& record, uint32_t position,
                                  Clock::TimePoint now) {
  const auto own = std::count_if(open_.begin(), open_.end(), [&](const GatheredOperation& open) {
    return open.opener == position;
  });
  if (open_.size() >= open_max_ || static_cast<size_t>(own) * 2 >= open_max_ ||
      record.sequence < closed_below_[static_cast<size_t>(record.kind)]) {
    return nullptr;
  }
  GatheredOperation open;
  open.kind = record.kind;
  open.algorithm = record.algorithm;
  open.protocol = record.protocol;
  open.sequence = record.sequence;
  open.opener = position;
  open.since = now;
  open.samples.resize(members_);
  const std::vector<uint64_t>& newest = NewestOf(record.kind);
  open.passed =
      static_cast<uint32_t>(std::count_if(newest.begin(), newest.end(), [&](uint64_t sequence) {
        return sequence >= open.sequence + kPassedBy;
      }));
  open_.push_back(std::move(open));
  return &open_.back();
}

void Gatherer::Add(const CollectiveRecord& record, uint32_t position, Clock::TimePoint now) {
  std::vector<uint64_t>& newest = NewestOf(record.kind);
  newest.resize(members_);
  // This applies even if the record itself is dropped below: otherwise a full gatherer stays full.
  for (GatheredOperation& open : open_) {
    const uint64_t passed_from = open.sequence + kPassedBy;
    const bool passes = newest[position] < passed_from && record.sequence >= passed_from;
    if (passes && open.kind == record.kind && !open.samples[position].present()) ++open.passed;
  }
  newest[position] = std::max(newest[position], record.sequence);
  GatheredOperation* open = Find(record);
  if (open == nullptr) open = Open(record, position, now);
  if (open == nullptr || open->samples[position].present()) return;
  if (newest[position] >= open->sequence + kPassedBy) --open->passed;
  open->samples[position] = {record.started_ns, record.ended_ns, record.blocked_ns,
                             record.moved_bytes};
  open->bytes = std::max(open->bytes, record.bytes);
  ++open->count;
}

std::optional<GatheredOperation> Gatherer::Take(Clock::TimePoint before) {
  while (!open_.empty() && (open_.front().count + open_.front().passed == members_ ||
                            open_.front().since <= before)) {
    GatheredOperation oldest = std::move(open_.front());
    open_.erase(open_.begin());
    if (oldest.count < 2 || uint64_t{oldest.count} * 2 < members_) continue;
    uint64_t& below = closed_below_[static_cast<size_t>(oldest.kind)];
    below = std::max(below, oldest.sequence + 1);
    return oldest;
  }
  return std::nullopt;
}

}  // namespace holdfast::detect
