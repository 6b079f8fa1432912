#pragma once

#include "coordinator/api/coordinator.pb.h"
#include "coordinator/api/run_types.h"
#include "storage/base/status.h"

// Between coordinator.proto and run_types.h; as in convert.h, FromProto checks all that arrives.

namespace holdfast::coord {

namespace pb = ::holdfast::coordinator;

Result<WorkerState> FromProto(const pb::WorkerState& state);
void ToProto(const WorkerState& state, pb::WorkerState* out);
Result<WorkersOrder> FromProto(const pb::WorkersOrder& order);
void ToProto(const WorkersOrder& order, pb::WorkersOrder* out);
/// InvalidArgument in the words of the person who asked for it.
Result<RunSpec> FromProto(const pb::RunSpec& spec);
void ToProto(const RunSpec& spec, pb::RunSpec* out);

}  // namespace holdfast::coord
