#include "coordinator/store/memory_store.h"

namespace holdfast::coord {

Result<std::optional<std::string>> MemoryStore::Get(std::string_view key) {
  auto found = data_.find(key);
  if (found == data_.end()) return std::optional<std::string>();
  return std::optional<std::string>(found->second);
}

Result<std::vector<KeyValue>> MemoryStore::Range(std::string_view prefix) {
  std::vector<KeyValue> result;
  for (auto it = data_.lower_bound(prefix); it != data_.end(); ++it) {
    if (it->first.compare(0, prefix.size(), prefix) != 0) break;
    result.push_back({it->first, it->second});
  }
  return result;
}

Result<bool> MemoryStore::Commit(std::span<const Compare> compares,
                                 std::span<const Mutation> mutations) {
  if (failed_) return Fail(IoErrorError("an earlier write failed; open the store again"));
  for (const Compare& compare : compares) {
    HOLDFAST_ASSIGN_OR_RETURN(auto value, Get(compare.key));
    if (value != compare.value) return false;
  }
  const Fault fault = fault_ ? fault_() : Fault::kNone;
  if (fault != Fault::kFailNotApplied) {
    for (const Mutation& mutation : mutations) {
      if (mutation.value) {
        data_[mutation.key] = *mutation.value;
      } else {
        data_.erase(mutation.key);
      }
    }
  }
  failed_ = fault != Fault::kNone;
  if (failed_) return Fail(IoErrorError("injected: the outcome of this write is unknown"));
  return true;
}

}  // namespace holdfast::coord
