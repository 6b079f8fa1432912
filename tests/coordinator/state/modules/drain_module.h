#pragma once

#include <string>
#include <vector>

#include "coordinator/state/drain.h"
#include "coordinator/state/queries.h"
#include "tests/coordinator/state/modules/module_test.h"

namespace holdfast::coord {

/// Three nodes in one parity group, whose job has ended with version 2-10 on disk.
class DrainModule : public ModuleTest {
 protected:
  void SetUp() override {
    MakeJob(3);
    MakeGroup(1);
    AddCommitted(V(2, 10), {Tier::kDisk});
    AddParity(version(), Tier::kDisk);
    job().phase = JobPhase::kEnded;
  }
  VersionState& version() { return job().versions.at(V(2, 10)); }
  ErrorCode Drain(const std::string& node, bool set = true, bool move_runs = false) {
    OnDrainSet(context, {7, node, set, "new fan", move_runs});
    return Added<Reply>().back().outcome.code();
  }
  std::vector<std::string> ShownNodes() {
    std::vector<std::string> names;
    for (const NodeStatus& status : NodeStatuses(context)) names.push_back(status.name);
    return names;
  }
  DrainedJob Judge(const std::string& node) {
    const auto status = DrainOf(context, node);
    EXPECT_TRUE(status.has_value());
    return status ? status->jobs.at(0) : DrainedJob();
  }
};

}  // namespace holdfast::coord
