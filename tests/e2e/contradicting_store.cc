// Adds version 1-5 of a job to the store of a coordinator that does not run. The version is both
// committed and failed at tier disk. No coordinator writes such a record, so the next write of it
// violates an invariant.
//
//   contradicting_store DATA_DIR CLUSTER JOB

#include <cstdio>

#include "coordinator/store/catalog.h"
#include "coordinator/store/rocks_store.h"

int main(int argc, char** argv) {
  using namespace holdfast;
  using namespace holdfast::coord;
  if (argc != 4) return 64;
  const auto fail = [](const Status& status) {
    std::fprintf(stderr, "contradicting_store: %s\n", status.ToString().c_str());
    return 1;
  };
  auto store = RocksStore::Open(argv[1]);
  if (!store) return fail(store.error());
  auto catalog = Catalog::Open(*std::move(store), argv[2]);
  if (!catalog) return fail(catalog.error());
  JobRecord job;
  job.job = argv[3];
  job.incarnation = Incarnation{1};
  const LineageRecord lineage{argv[3], Incarnation{1}, "run-1", 1, Decision::kFresh, {}};
  VersionRecord version;
  version.job = argv[3];
  version.version = VersionId{Incarnation{1}, Step{5}};
  version.world = 1;
  version.phase = Phase::kCommitted;
  version.tiers = version.failed_tiers = TierBit(Tier::kDisk);
  version.digests = {7};
  const Status written =
      (*catalog)->Write(std::vector<Effect>{PutJob{job}, PutLineage{lineage}, PutVersion{version}});
  return written.ok() ? 0 : fail(written);
}
