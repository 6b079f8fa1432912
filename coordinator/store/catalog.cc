#include "coordinator/store/catalog.h"

#include <fmt/format.h>

#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include "coordinator/store/record_codec.h"

namespace holdfast::coord {
namespace {
/// Returns the mutation of an effect; nullopt for an effect that is not stored.
struct Writing {
  std::optional<Mutation> operator()(const PutJob& put) const {
    return Mutation{JobKey(put.record.job), EncodeJob(put.record)};
  }
  std::optional<Mutation> operator()(const EraseJob& erase) const {
    return Mutation{JobKey(erase.job), std::nullopt};
  }
  std::optional<Mutation> operator()(const EraseLineage& erase) const {
    return Mutation{LineageKey(erase.job, erase.incarnation), std::nullopt};
  }
  std::optional<Mutation> operator()(const EraseRun& erase) const {
    return Mutation{RunKey(erase.job), std::nullopt};
  }
  std::optional<Mutation> operator()(const PutLineage& put) const {
    return Mutation{LineageKey(put.record.job, put.record.incarnation), EncodeLineage(put.record)};
  }
  std::optional<Mutation> operator()(const PutVersion& put) const {
    return Mutation{VersionKey(put.record.job, put.record.version), EncodeVersion(put.record)};
  }
  std::optional<Mutation> operator()(const EraseVersion& erase) const {
    return Mutation{VersionKey(erase.job, erase.version), std::nullopt};
  }
  std::optional<Mutation> operator()(const PutRun& put) const {
    return Mutation{RunKey(put.record.spec.job), EncodeRun(put.record)};
  }
  std::optional<Mutation> operator()(const PutIncident& put) const {
    return Mutation{IncidentKey(put.record.id), EncodeIncident(put.record)};
  }
  std::optional<Mutation> operator()(const EraseIncident& erase) const {
    return Mutation{IncidentKey(erase.id), std::nullopt};
  }
  std::optional<Mutation> operator()(const PutQuarantine& put) const {
    return Mutation{QuarantineKey(put.record.node), EncodeQuarantine(put.record)};
  }
  std::optional<Mutation> operator()(const EraseQuarantine& erase) const {
    return Mutation{QuarantineKey(erase.node), std::nullopt};
  }
  std::optional<Mutation> operator()(const PutDrain& put) const {
    return Mutation{DrainKey(put.record.node), EncodeDrain(put.record)};
  }
  std::optional<Mutation> operator()(const EraseDrain& erase) const {
    return Mutation{DrainKey(erase.node), std::nullopt};
  }
  std::optional<Mutation> operator()(const PutSuspect& put) const {
    return Mutation{SuspectKey(put.record.node), EncodeSuspect(put.record)};
  }
  std::optional<Mutation> operator()(const EraseSuspect& erase) const {
    return Mutation{SuspectKey(erase.node), std::nullopt};
  }
  std::optional<Mutation> operator()(const PutToken& put) const {
    return Mutation{TokenKey(put.record.id), EncodeToken(put.record)};
  }
  std::optional<Mutation> operator()(const EraseToken& erase) const {
    return Mutation{TokenKey(erase.id), std::nullopt};
  }
  std::optional<Mutation> operator()(const PutIdentity& put) const {
    return Mutation{IdentityRecordKey(put.record.role, put.record.name),
                    EncodeIdentity(put.record)};
  }
  template <typename NotStored>
  std::optional<Mutation> operator()(const NotStored&) const {
    return std::nullopt;
  }
};

/// Reads all records under a prefix.
template <typename Record>
Status ReadAll(MetaStore& store, std::string_view prefix,
               Result<Record> (*decode)(std::string_view, std::string_view),
               std::vector<Record>& into) {
  HOLDFAST_ASSIGN_OR_RETURN(auto entries, store.Range(prefix));
  for (const KeyValue& entry : entries) {
    HOLDFAST_ASSIGN_OR_RETURN(Record record, decode(entry.key, entry.value));
    into.push_back(std::move(record));
  }
  return Status::Ok();
}
}  // namespace

Result<std::unique_ptr<Catalog>> Catalog::Open(std::unique_ptr<MetaStore> store,
                                               const std::string& cluster,
                                               InvariantMonitor& invariants) {
  HOLDFAST_ASSIGN_OR_RETURN(auto owner, store->Get(kClusterKey));
  if (owner) {
    HOLDFAST_ASSIGN_OR_RETURN(std::string name, DecodeCluster(*owner));
    if (name != cluster) {
      return Fail(FailedPreconditionError(
          fmt::format("data_dir belongs to cluster '{}', this coordinator serves '{}'; choose "
                      "another data_dir or set cluster",
                      name, cluster)));
    }
  }
  HOLDFAST_ASSIGN_OR_RETURN(auto before, store->Get(kEpochKey));
  Epoch epoch;
  if (before) {
    HOLDFAST_ASSIGN_OR_RETURN(epoch, DecodeEpoch(*before));
  }
  const uint64_t epoch_before = epoch.value;
  ++epoch.value;
  if (!HOLDFAST_INVARIANT(invariants, epoch.value > epoch_before, Kv("before", epoch_before))) {
    return Fail(invariants.error());
  }
  HOLDFAST_ASSIGN_OR_RETURN(auto stored_life, store->Get(kLifeKey));
  LifeId life = NewLife();
  if (stored_life) {
    HOLDFAST_ASSIGN_OR_RETURN(life, DecodeLife(*stored_life));
  }
  const Compare compares[] = {{std::string(kClusterKey), owner},
                              {std::string(kEpochKey), before},
                              {std::string(kLifeKey), stored_life}};
  const Mutation mutations[] = {{std::string(kClusterKey), EncodeCluster(cluster)},
                                {std::string(kEpochKey), EncodeEpoch(epoch)},
                                {std::string(kLifeKey), EncodeLife(life)}};
  HOLDFAST_ASSIGN_OR_RETURN(bool applied, store->Commit(compares, mutations));
  if (!applied) return Fail(FencedError("another coordinator took the same store"));
  return std::unique_ptr<Catalog>(new Catalog(std::move(store), epoch, life, invariants));
}

Result<Records> Catalog::Read() {
  Records records;
  HOLDFAST_RETURN_IF_ERROR(ReadAll(*store_, kJobPrefix, DecodeJob, records.jobs));
  HOLDFAST_RETURN_IF_ERROR(ReadAll(*store_, kLineagePrefix, DecodeLineage, records.lineages));
  HOLDFAST_RETURN_IF_ERROR(ReadAll(*store_, kVersionPrefix, DecodeVersion, records.versions));
  HOLDFAST_RETURN_IF_ERROR(ReadAll(*store_, kRunPrefix, DecodeRun, records.runs));
  HOLDFAST_RETURN_IF_ERROR(ReadAll(*store_, kIncidentPrefix, DecodeIncident, records.incidents));
  HOLDFAST_RETURN_IF_ERROR(
      ReadAll(*store_, kQuarantinePrefix, DecodeQuarantine, records.quarantine));
  HOLDFAST_RETURN_IF_ERROR(ReadAll(*store_, kDrainPrefix, DecodeDrain, records.drains));
  HOLDFAST_RETURN_IF_ERROR(ReadAll(*store_, kSuspectPrefix, DecodeSuspect, records.suspects));
  HOLDFAST_RETURN_IF_ERROR(ReadAll(*store_, kTokenPrefix, DecodeToken, records.tokens));
  HOLDFAST_RETURN_IF_ERROR(ReadAll(*store_, kIdentityPrefix, DecodeIdentity, records.identities));
  return records;
}

/// A commit record must be readable again: it is the only proof that the version is complete.
void Catalog::CheckCommitRecord(const PutVersion& put) const {
  const VersionRecord& record = put.record;
  const std::string name = ToString(record.version);
  HOLDFAST_INVARIANT(invariants_, (record.tiers & put.committed_tier_bit) == put.committed_tier_bit,
                     Kv("job", record.job), Kv("version", name), Kv("tiers", record.tiers));
  HOLDFAST_INVARIANT(invariants_, record.digests.size() == record.world, Kv("job", record.job),
                     Kv("version", name), Kv("digests", record.digests.size()),
                     Kv("world", record.world));
  const Result<VersionRecord> again =
      DecodeVersion(VersionKey(record.job, record.version), EncodeVersion(record));
  HOLDFAST_INVARIANT(invariants_, again && *again == record, Kv("job", record.job),
                     Kv("version", name), Kv("why", again ? "" : again.error().message()));
}

void Catalog::CheckBatch(std::span<const Effect> effects) const {
  std::set<std::tuple<std::string, VersionId, uint32_t>> commits;
  std::set<std::pair<std::string, Incarnation>> decisions;
  for (const Effect& effect : effects) {
    if (const auto* put = std::get_if<PutVersion>(&effect)) {
      if (put->committed_tier_bit == 0) continue;
      CheckCommitRecord(*put);
      const bool only =
          commits.insert({put->record.job, put->record.version, put->committed_tier_bit}).second;
      HOLDFAST_INVARIANT(invariants_, only, Kv("job", put->record.job),
                         Kv("version", ToString(put->record.version)),
                         Kv("tier_bit", put->committed_tier_bit));
    } else if (const auto* lineage = std::get_if<PutLineage>(&effect)) {
      if (lineage->change != LineageChange::kDecided) continue;
      const LineageRecord& record = lineage->record;
      const bool only = decisions.insert({record.job, record.incarnation}).second;
      HOLDFAST_INVARIANT(invariants_, only && record.decision != Decision::kNone,
                         Kv("job", record.job), Kv("incarnation", record.incarnation.value));
      HOLDFAST_INVARIANT(invariants_,
                         record.decision != Decision::kVersion ||
                             record.restored.incarnation <= record.incarnation,
                         Kv("job", record.job), Kv("restored", ToString(record.restored)),
                         Kv("incarnation", record.incarnation.value));
    }
  }
}

Status Catalog::Write(std::span<const Effect> effects) {
  CheckBatch(effects);
  HOLDFAST_RETURN_IF_ERROR(invariants_.error());
  std::vector<Mutation> mutations;
  for (const Effect& effect : effects) {
    std::optional<Mutation> mutation = std::visit(Writing{}, effect);
    if (mutation) mutations.push_back(*std::move(mutation));
  }
  if (mutations.empty()) return Status::Ok();
  const Compare compares[] = {{std::string(kEpochKey), EncodeEpoch(epoch_)}};
  HOLDFAST_ASSIGN_OR_RETURN(bool applied, store_->Commit(compares, mutations));
  if (!applied) return FencedError("another coordinator took the store");
  return Status::Ok();
}

}  // namespace holdfast::coord
