#include "coordinator/detect/gather.h"

#include <algorithm>

namespace holdfast::detect {
Gatherer::Gatherer(uint32_t members)
    : members_(members), open_max_(std::clamp<size_t>(8192 / members, 48, 128)) {}

GatheredOperation* Gatherer::Find(const Collective& record) {
  for (GatheredOperation& open : open_) {
    if (open.seq == record.seq && open.func == record.func) return &open;
  }
  return nullptr;
}

GatheredOperation* Gatherer::Open(const Collective& record, uint32_t position,
                                  Clock::TimePoint now) {
  const auto own = std::count_if(open_.begin(), open_.end(), [&](const GatheredOperation& open) {
    return open.opener == position;
  });
  if (open_.size() >= open_max_ || static_cast<size_t>(own) * 2 >= open_max_ ||
      record.seq < closed_below_[static_cast<size_t>(record.func)]) {
    return nullptr;
  }
  GatheredOperation open;
  open.func = record.func;
  open.algo = record.algo;
  open.proto = record.proto;
  open.seq = record.seq;
  open.opener = position;
  open.since = now;
  open.samples.resize(members_);
  open_.push_back(std::move(open));
  return &open_.back();
}

void Gatherer::Add(const Collective& record, uint32_t position, Clock::TimePoint now) {
  GatheredOperation* open = Find(record);
  if (open == nullptr) open = Open(record, position, now);
  if (open == nullptr || open->samples[position].present()) return;
  open->samples[position] = {record.start_ns, record.stop_ns, record.blocked_ns,
                             record.moved_bytes};
  open->bytes = std::max(open->bytes, record.bytes);
  ++open->count;
}

std::optional<GatheredOperation> Gatherer::Take(Clock::TimePoint before) {
  while (!open_.empty() && (open_.front().count == members_ || open_.front().since <= before)) {
    GatheredOperation oldest = std::move(open_.front());
    open_.erase(open_.begin());
    if (oldest.count < 2 || uint64_t{oldest.count} * 2 < members_) continue;
    uint64_t& below = closed_below_[static_cast<size_t>(oldest.func)];
    below = std::max(below, oldest.seq + 1);
    return oldest;
  }
  return std::nullopt;
}

}  // namespace holdfast::detect
