#pragma once

#include "base/status.h"
#include "coordinator/api/coordinator.pb.h"
#include "coordinator/contract/directives.h"
#include "coordinator/contract/reports.h"
#include "coordinator/contract/runs.h"

// Conversion of runs and workers between coordinator.proto and coordinator/contract. As in
// convert.h, FromProto checks all values.

namespace holdfast::coord {

namespace pb = ::holdfast::coordinator;

Result<WorkerState> FromProto(const pb::WorkerState& state);
void ToProto(const WorkerState& state, pb::WorkerState* out);
Result<SetWorkers> FromProto(const pb::SetWorkers& directive);
void ToProto(const SetWorkers& directive, pb::SetWorkers* out);
/// InvalidArgument names the option of `holdfast run` that is wrong.
Result<RunSpec> FromProto(const pb::RunSpec& spec);
void ToProto(const RunSpec& spec, pb::RunSpec* out);

}  // namespace holdfast::coord
