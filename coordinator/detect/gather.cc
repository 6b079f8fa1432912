#include "coordinator/detect/gather.h"

#include <algorithm>

namespace holdfast::detect {
Gatherer::Gatherer(uint32_t members)
    : members_(members), open_max_(std::clamp<size_t>(8192 / members, 48, 64)) {}

Gathered* Gatherer::Find(const Collective& record) {
  for (Gathered& open : open_) {
    if (open.seq == record.seq && open.func == record.func) return &open;
  }
  return nullptr;
}

Gathered* Gatherer::Open(const Collective& record, uint32_t position, Clock::TimePoint now) {
  const auto own = std::count_if(open_.begin(), open_.end(),
                                 [&](const Gathered& open) { return open.opener == position; });
  if (open_.size() >= open_max_ || static_cast<size_t>(own) * 2 >= open_max_ ||
      record.seq < closed_below_[static_cast<size_t>(record.func)]) {
    return nullptr;
  }
  Gathered open;
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

std::optional<Gathered> Gatherer::Add(const Collective& record, uint32_t position,
                                      Clock::TimePoint now) {
  Gathered* open = Find(record);
  if (open == nullptr) open = Open(record, position, now);
  if (open == nullptr) return std::nullopt;
  Sample& sample = open->samples[position];
  if (sample.present()) return std::nullopt;
  sample = {record.start_ns, record.stop_ns, record.blocked_ns, record.moved_bytes};
  open->bytes = std::max(open->bytes, record.bytes);
  if (++open->count < members_) return std::nullopt;
  Gathered whole = std::move(*open);
  open_.erase(open_.begin() + (open - open_.data()));
  return whole;
}

std::optional<Gathered> Gatherer::TakeOld(Clock::TimePoint before) {
  while (!open_.empty() && open_.front().since <= before) {
    Gathered old = std::move(open_.front());
    open_.erase(open_.begin());
    if (old.count < 2 || uint64_t{old.count} * 2 < members_) continue;
    uint64_t& below = closed_below_[static_cast<size_t>(old.func)];
    below = std::max(below, old.seq + 1);
    return old;
  }
  return std::nullopt;
}

}  // namespace holdfast::detect
