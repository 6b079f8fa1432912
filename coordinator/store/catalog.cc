#include "coordinator/store/catalog.h"

#include <fmt/format.h>

#include <variant>

#include "coordinator/store/record_codec.h"

namespace holdfast::coord {
namespace {
std::optional<Mutation> MutationOf(const Effect& effect) {
  if (const auto* put = std::get_if<PutJob>(&effect)) {
    return Mutation{JobKey(put->record.job), EncodeJob(put->record)};
  }
  if (const auto* put = std::get_if<PutLineage>(&effect)) {
    return Mutation{LineageKey(put->record.job, put->record.incarnation),
                    EncodeLineage(put->record)};
  }
  if (const auto* put = std::get_if<PutVersion>(&effect)) {
    return Mutation{VersionKey(put->record.job, put->record.version), EncodeVersion(put->record)};
  }
  if (const auto* erase = std::get_if<EraseVersion>(&effect)) {
    return Mutation{VersionKey(erase->job, erase->version), std::nullopt};
  }
  return std::nullopt;
}

bool IsWrite(const Effect& effect) {
  return std::holds_alternative<PutJob>(effect) || std::holds_alternative<PutLineage>(effect) ||
         std::holds_alternative<PutVersion>(effect) || std::holds_alternative<EraseVersion>(effect);
}
}  // namespace

Result<std::unique_ptr<Catalog>> Catalog::Open(std::unique_ptr<MetaStore> store,
                                               const std::string& cluster) {
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
  ++epoch.value;
  const Compare compares[] = {{std::string(kClusterKey), owner}, {std::string(kEpochKey), before}};
  const Mutation mutations[] = {{std::string(kClusterKey), EncodeCluster(cluster)},
                                {std::string(kEpochKey), EncodeEpoch(epoch)}};
  HOLDFAST_ASSIGN_OR_RETURN(bool applied, store->Commit(compares, mutations));
  if (!applied) return Fail(FencedError("another coordinator took the same store"));
  return std::unique_ptr<Catalog>(new Catalog(std::move(store), epoch));
}

Result<Records> Catalog::Read() {
  Records records;
  HOLDFAST_ASSIGN_OR_RETURN(auto jobs, store_->Range(kJobPrefix));
  for (const KeyValue& entry : jobs) {
    HOLDFAST_ASSIGN_OR_RETURN(JobRecord record, DecodeJob(entry.key, entry.value));
    records.jobs.push_back(std::move(record));
  }
  HOLDFAST_ASSIGN_OR_RETURN(auto lineages, store_->Range(kLineagePrefix));
  for (const KeyValue& entry : lineages) {
    HOLDFAST_ASSIGN_OR_RETURN(LineageRecord record, DecodeLineage(entry.key, entry.value));
    records.lineages.push_back(std::move(record));
  }
  HOLDFAST_ASSIGN_OR_RETURN(auto versions, store_->Range(kVersionPrefix));
  for (const KeyValue& entry : versions) {
    HOLDFAST_ASSIGN_OR_RETURN(VersionRecord record, DecodeVersion(entry.key, entry.value));
    records.versions.push_back(std::move(record));
  }
  return records;
}

Status Catalog::Write(std::span<const Effect> effects) {
  std::vector<Mutation> mutations;
  for (const Effect& effect : effects) {
    std::optional<Mutation> mutation = MutationOf(effect);
    if (mutation) mutations.push_back(*std::move(mutation));
  }
  if (mutations.empty()) return Status::Ok();
  const Compare compares[] = {{std::string(kEpochKey), EncodeEpoch(epoch_)}};
  HOLDFAST_ASSIGN_OR_RETURN(bool applied, store_->Commit(compares, mutations));
  if (!applied) return FencedError("another coordinator took the store");
  return Status::Ok();
}

bool Catalog::HasWrites(std::span<const Effect> effects) {
  for (const Effect& effect : effects) {
    if (IsWrite(effect)) return true;
  }
  return false;
}

}  // namespace holdfast::coord
