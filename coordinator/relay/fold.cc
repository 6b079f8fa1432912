#include "coordinator/relay/fold.h"

#include <map>
#include <string>
#include <tuple>

#include "coordinator/api/convert.h"

namespace holdfast::coord::relay {
namespace {
/// Whether a folded replica has all that this one has: also no field of a newer agent.
bool IsPlain(const pb::StoredReplica& replica) {
  pb::StoredReplica folded;
  folded.set_job(replica.job());
  *folded.mutable_version() = replica.version();
  folded.set_rank(replica.rank());
  folded.set_world(replica.world());
  folded.set_tier(replica.tier());
  folded.set_digest(replica.digest());
  folded.set_image_bytes(replica.image_bytes());
  folded.set_life(replica.life());
  return folded.ByteSizeLong() == replica.ByteSizeLong() && FromProto(replica).has_value();
}
}  // namespace

void FoldReplicas(pb::ForwardRequest* batch) {
  using Key = std::tuple<std::string, uint64_t, uint64_t, uint32_t, uint32_t, uint64_t>;
  std::map<Key, int> folded;  // → its position in the batch
  for (int item = 0; item < batch->items_size(); ++item) {
    if (!batch->items(item).has_report()) continue;
    auto* replicas = batch->mutable_items(item)->mutable_report()->mutable_replicas();
    google::protobuf::RepeatedPtrField<pb::StoredReplica> left;
    for (pb::StoredReplica& replica : *replicas) {
      if (!IsPlain(replica)) {
        *left.Add() = std::move(replica);
        continue;
      }
      const Key key{replica.job(),
                    replica.version().incarnation(),
                    replica.version().step(),
                    replica.world(),
                    replica.tier(),
                    replica.life()};
      const auto [found, added] = folded.try_emplace(key, batch->folded_size());
      if (added) {
        pb::FoldedReplicas* entry = batch->add_folded();
        entry->set_job(replica.job());
        *entry->mutable_version() = replica.version();
        entry->set_world(replica.world());
        entry->set_tier(replica.tier());
        entry->set_life(replica.life());
      }
      pb::FoldedReplicas* entry = batch->mutable_folded(found->second);
      entry->add_items(static_cast<uint32_t>(item));
      entry->add_ranks(replica.rank());
      entry->add_digests(replica.digest());
      entry->add_image_bytes(replica.image_bytes());
    }
    replicas->Swap(&left);
  }
}

}  // namespace holdfast::coord::relay
