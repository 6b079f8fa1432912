#include "tests/simulation/sim_arena.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "base/random.h"

namespace holdfast::agent {

class SimSegment final : public Segment {
 public:
  SimSegment(std::shared_ptr<KeptSegment> kept, Ledger ledger)
      : kept_(std::move(kept)), shape_(ledger.shape()), ledger_(std::move(ledger)) {
    void* at = ::mmap(nullptr, shape_.segment_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED,
                      kept_->memory.get(), 0);
    if (at == MAP_FAILED) std::abort();
    memory_ = {static_cast<std::byte*>(at), shape_.segment_bytes()};
  }
  ~SimSegment() override { ::munmap(memory_.data(), memory_.size()); }

  /// Adopts what an earlier agent left, as MappedSegment does.
  void DropUnfinished() {
    for (uint32_t i = 0; i < shape_.slots; ++i) {
      if (!ledger_.Check(i).ok() || ledger_.state(i) == SlotState::kLeased) ledger_.WriteFree(i);
    }
  }
  /// Replaces the memory and the ledger by private copies.
  void Detach() {
    void* at = ::mmap(memory_.data(), memory_.size(), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_FIXED, kept_->memory.get(), 0);
    if (at == MAP_FAILED) std::abort();
    private_ledger_ = kept_->ledger;
    auto ledger = Ledger::Read(std::as_writable_bytes(std::span(private_ledger_)));
    if (!ledger) std::abort();
    ledger_ = *std::move(ledger);
  }

  uint64_t id() const override { return shape_.id; }
  const SegmentOwner& owner() const override { return shape_.owner; }
  uint32_t slot_count() const override { return shape_.slots; }
  uint64_t slot_bytes() const override { return shape_.slot_bytes; }
  int fd() const override { return kept_->memory.get(); }
  InvariantMonitor& invariants() const override { return invariants_; }
  std::span<std::byte> memory() override { return memory_; }
  std::span<std::byte> slot(uint32_t index) override {
    return memory_.subspan(kControlBytes + index * shape_.slot_bytes, shape_.slot_bytes);
  }
  SlotProgress& progress(uint32_t index) override { return control().slots[index]; }
  SegmentControl& control() override { return *reinterpret_cast<SegmentControl*>(memory_.data()); }
  SlotRecord record(uint32_t index) const override { return ledger_.record(index); }
  Result<ShardSeal> seal(uint32_t index) const override {
    MutexLock lock(mutex_);
    return ledger_.ReadSeal(index);
  }
  Result<uint32_t> Lease(VersionId version, uint32_t world, uint64_t image_bytes) override {
    if (image_bytes == 0 || image_bytes > shape_.slot_bytes) {
      return Fail(InvalidArgumentError("the image does not fit a slot"));
    }
    MutexLock lock(mutex_);
    for (uint32_t i = 0; i < shape_.slots; ++i) {
      if (ledger_.state(i) != SlotState::kFree) continue;
      progress(i).copied.store(0);
      ledger_.WriteLeased(i, {SlotState::kLeased, version, world, image_bytes});
      return i;
    }
    return Fail(ResourceExhaustedError("no slot is free"));
  }
  Status Abandon(uint32_t index) override { return FreeIf(index, SlotState::kLeased); }
  Status Free(uint32_t index) override { return FreeIf(index, SlotState::kSealed); }
  Status Seal(uint32_t index, const ShardSeal& seal) override {
    MutexLock lock(mutex_);
    const SlotRecord record = ledger_.record(index);
    const ShardIdentity leased{shape_.owner.job, record.version, shape_.owner.rank, record.world};
    if (record.state != SlotState::kLeased || seal.identity != leased ||
        seal.image_bytes != record.image_bytes) {
      return FailedPreconditionError("the seal does not match the lease");
    }
    ledger_.WriteSealed(index, seal);
    return Status::Ok();
  }
  bool AllFree() const {
    for (uint32_t i = 0; i < shape_.slots; ++i) {
      if (ledger_.state(i) != SlotState::kFree) return false;
    }
    return true;
  }
  uint64_t bytes() const { return shape_.segment_bytes(); }

 private:
  Status FreeIf(uint32_t index, SlotState state) {
    MutexLock lock(mutex_);
    if (ledger_.state(index) != state) return FailedPreconditionError("the slot's state differs");
    ledger_.WriteFree(index);
    return Status::Ok();
  }

  const std::shared_ptr<KeptSegment> kept_;
  const SegmentShape shape_;
  std::span<std::byte> memory_;
  mutable Mutex mutex_;
  Ledger ledger_;
  mutable InvariantMonitor invariants_{"a simulated rank"};
  std::vector<uint64_t> private_ledger_;
};

SimArena::SimArena(KeptMemory& kept, uint64_t budget_bytes)
    : kept_(kept), budget_bytes_(budget_bytes) {
  for (const auto& [id, one] : kept_) {
    auto ledger = Ledger::Read(std::as_writable_bytes(std::span(one->ledger)));
    if (!ledger) std::abort();
    auto segment = std::make_unique<SimSegment>(one, *std::move(ledger));
    segment->DropUnfinished();
    const Key key{segment->owner().job, segment->owner().rank.value, 0};
    std::unique_ptr<SimSegment>& place = segments_[key];
    if (place == nullptr || place->bytes() < segment->bytes()) place.swap(segment);
    if (segment == nullptr) continue;
    const Key retained{std::get<0>(key), std::get<1>(key), segment->id()};
    segments_[retained] = std::move(segment);
  }
}

SimArena::~SimArena() = default;

void SimArena::Detach() {
  detached_ = true;
  for (const auto& [key, segment] : segments_) segment->Detach();
}

void SimArena::Drop(uint64_t id) {
  if (!detached_) kept_.erase(id);
}

Result<Segment*> SimArena::Reserve(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes) {
  MutexLock lock(mutex_);
  slot_bytes = RoundUp(slot_bytes, kSlotAlign);
  const Key key{owner.job, owner.rank.value, 0};
  if (auto found = segments_.find(key); found != segments_.end()) {
    SimSegment& existing = *found->second;
    if (existing.owner().uid != owner.uid) return Fail(PermissionDeniedError("another user's"));
    if (existing.slot_count() >= slots && existing.slot_bytes() >= slot_bytes) return &existing;
    if (!existing.AllFree()) return Fail(FailedPreconditionError("the segment is too small"));
    Drop(existing.id());
    segments_.erase(found);
  }
  uint64_t reserved = 0;
  for (const auto& [each, segment] : segments_) reserved += segment->bytes();
  const SegmentShape shape{
      .id = RandomSeed(), .owner = owner, .slots = slots, .slot_bytes = slot_bytes};
  if (reserved + shape.segment_bytes() > budget_bytes_) {
    return Fail(ResourceExhaustedError("the arena is full"));
  }
  auto kept = std::make_shared<KeptSegment>();
  kept->memory = UniqueFd(::memfd_create("simulation", MFD_CLOEXEC));
  if (::ftruncate(kept->memory.get(), static_cast<off_t>(shape.segment_bytes())) != 0) {
    return Fail(ErrnoStatus(errno, "ftruncate"));
  }
  kept->ledger.resize((Ledger::BytesFor(slots, slot_bytes) + 7) / 8);
  Ledger ledger = Ledger::Make(std::as_writable_bytes(std::span(kept->ledger)), shape);
  if (!detached_) kept_[shape.id] = kept;
  auto& place = segments_[key];
  place = std::make_unique<SimSegment>(kept, std::move(ledger));
  if (detached_) place->Detach();
  return place.get();
}

Segment* SimArena::Find(const std::string& job, Rank rank) {
  MutexLock lock(mutex_);
  auto found = segments_.find({job, rank.value, 0});
  return found == segments_.end() ? nullptr : found->second.get();
}

std::map<SimArena::Key, std::unique_ptr<SimSegment>>::iterator SimArena::Locate(
    const Segment* segment) {
  for (auto it = segments_.begin(); it != segments_.end(); ++it) {
    if (it->second.get() == segment) return it;
  }
  return segments_.end();
}

Status SimArena::Rekey(const Segment* segment, const Key& to) {
  MutexLock lock(mutex_);
  auto found = Locate(segment);
  if (found == segments_.end()) return NotFoundError("no such segment");
  if (found->first == to) return Status::Ok();
  if (segments_.contains(to)) return AlreadyExistsError("the rank has another segment now");
  auto node = segments_.extract(found);
  node.key() = to;
  segments_.insert(std::move(node));
  return Status::Ok();
}

Status SimArena::RetainSegment(Segment* segment) {
  return Rekey(segment, {segment->owner().job, segment->owner().rank.value, segment->id()});
}

Status SimArena::ReinstateSegment(Segment* segment) {
  return Rekey(segment, {segment->owner().job, segment->owner().rank.value, 0});
}

bool SimArena::IsRetained(const Segment* segment) const {
  MutexLock lock(mutex_);
  for (const auto& [key, each] : segments_) {
    if (each.get() == segment) return std::get<2>(key) != 0;
  }
  return false;
}

std::vector<Segment*> SimArena::segments() {
  MutexLock lock(mutex_);
  std::vector<Segment*> all;
  for (const auto& [key, segment] : segments_) all.push_back(segment.get());
  return all;
}

Status SimArena::Release(Segment* segment) {
  MutexLock lock(mutex_);
  auto found = Locate(segment);
  if (found == segments_.end()) return NotFoundError("no such segment");
  Drop(segment->id());
  segments_.erase(found);
  return Status::Ok();
}

ArenaUsage SimArena::usage() const {
  MutexLock lock(mutex_);
  ArenaUsage usage{.budget_bytes = budget_bytes_};
  for (const auto& [key, segment] : segments_) {
    usage.reserved_bytes += segment->bytes();
    ++usage.segments;
  }
  return usage;
}

ArenaShortage SimArena::ShortageOf(const SegmentOwner& owner, uint32_t slots,
                                   uint64_t slot_bytes) const {
  const SegmentShape shape{
      .owner = owner, .slots = slots, .slot_bytes = RoundUp(slot_bytes, kSlotAlign)};
  const bool full = usage().reserved_bytes + shape.segment_bytes() > budget_bytes_;
  return full ? ArenaShortage::kArena : ArenaShortage::kNone;
}

}  // namespace holdfast::agent
