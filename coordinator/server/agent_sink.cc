#include "coordinator/server/agent_sink.h"

#include "coordinator/api/convert.h"
#include "coordinator/api/run_convert.h"

namespace holdfast::coord {

pb::Directive ToWire(Epoch epoch, const Directive& directive) {
  pb::Directive wire;
  wire.set_epoch(epoch.value);
  if (const auto* welcome = std::get_if<Welcome>(&directive)) wire.set_life(welcome->life.value);
  if (const auto* state = std::get_if<JobState>(&directive)) ToProto(*state, wire.mutable_job());
  if (const auto* prepare = std::get_if<PrepareShard>(&directive)) {
    ToProto(*prepare, wire.mutable_prepare());
  }
  if (const auto* remove = std::get_if<RemoveVersion>(&directive)) {
    ToProto(*remove, wire.mutable_remove());
  }
  if (const auto* workers = std::get_if<SetWorkers>(&directive)) {
    ToProto(*workers, wire.mutable_workers());
  }
  return wire;
}

}  // namespace holdfast::coord
