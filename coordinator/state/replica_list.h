#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/tiers.h"

namespace holdfast::coord {

/// Index of a node in Cluster::nodes. It stays valid, since no node is ever removed.
using NodeIndex = uint32_t;
inline constexpr NodeIndex kNoNode = ~NodeIndex{0};

/// A replica of a shared tier has no node: any node that reaches the tier can read it.
struct Replica {
  NodeIndex node = kNoNode;
  Tier tier = Tier::kMemory;
  bool operator==(const Replica&) const = default;
};

/// The replicas of one shard, in the order in which they were added. Most shards have one in memory
/// and one on disk: these take no memory of their own, so that a copy of the state of 100,000 ranks
/// allocates nothing for each.
class ReplicaList {
 public:
  const Replica* begin() const { return many_.empty() ? few_.data() : many_.data(); }
  const Replica* end() const { return begin() + size(); }
  size_t size() const { return many_.empty() ? count_ : many_.size(); }
  bool empty() const { return size() == 0; }
  const Replica& front() const { return *begin(); }
  const Replica& operator[](size_t i) const { return begin()[i]; }

  void push_back(Replica replica) {
    if (many_.empty() && count_ < few_.size()) {
      few_[count_++] = replica;
      return;
    }
    if (many_.empty()) many_.assign(few_.begin(), few_.end());
    many_.push_back(replica);
  }
  void erase(const Replica* at) {
    const auto i = at - begin();
    if (many_.empty()) {
      for (size_t next = static_cast<size_t>(i) + 1; next < count_; ++next) {
        few_[next - 1] = few_[next];
      }
      --count_;
      return;
    }
    many_.erase(many_.begin() + i);
    if (many_.size() > few_.size()) return;
    for (count_ = 0; count_ < few_.size(); ++count_) few_[count_] = many_[count_];
    many_ = {};
  }

 private:
  std::array<Replica, 2> few_{};
  uint32_t count_ = 0;         // of few_
  std::vector<Replica> many_;  // all of them, if few_ has no room
};

}  // namespace holdfast::coord
