#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "agent/arena/arena.h"
#include "agent/arena/ledger.h"
#include "base/fd.h"

namespace holdfast::agent {

/// What the keeper of a simulated node holds: the memory and the ledger of each segment. It
/// outlives the agents of the node, and ends with the node.
struct KeptSegment {
  UniqueFd memory;
  std::vector<uint64_t> ledger;
};
using KeptMemory = std::map<uint64_t, std::shared_ptr<KeptSegment>>;  // by segment ID

class SimSegment;

/// The arena of one agent process over the memory that the node's keeper holds. It follows the
/// rules of NodeArena and uses the real ledger. Memory is allocated on first use, so that a
/// simulation does not fill large slots.
class SimArena final : public Arena {
 public:
  /// Adopts what `kept` holds. `kept` outlives the arena.
  SimArena(KeptMemory& kept, uint64_t budget_bytes);
  ~SimArena() override;

  /// The agent process ends: from now on its changes of the memory have no effect.
  void Detach();

  Result<Segment*> Reserve(const SegmentOwner& owner, uint32_t slots, uint64_t slot_bytes) override;
  Segment* Find(const std::string& job, Rank rank) override;
  Status RetainSegment(Segment* segment) override;
  Status ReinstateSegment(Segment* segment) override;
  bool IsRetained(const Segment* segment) const override;
  std::vector<Segment*> segments() override;
  Status Release(Segment* segment) override;
  ArenaUsage usage() const override;
  ArenaShortage ShortageOf(const SegmentOwner& owner, uint32_t slots,
                           uint64_t slot_bytes) const override;
  bool HasPriority(const std::string&) const override { return false; }
  Status EnsureKeeper() override { return Status::Ok(); }

 private:
  using Key = std::tuple<std::string, uint32_t, uint64_t>;
  std::map<Key, std::unique_ptr<SimSegment>>::iterator Locate(const Segment* segment);
  Status Rekey(const Segment* segment, const Key& to);
  void Drop(uint64_t id);

  KeptMemory& kept_;
  const uint64_t budget_bytes_;
  bool detached_ = false;
  mutable Mutex mutex_;
  std::map<Key, std::unique_ptr<SimSegment>> segments_;
};

}  // namespace holdfast::agent
