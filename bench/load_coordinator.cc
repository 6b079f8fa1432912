#include "bench/load_coordinator.h"

#include "coordinator/api/channel.h"
#include "testing/cluster/cluster.h"

namespace holdfast::bench {

Endpoint LoadCoordinator::endpoint() const {
  Endpoint endpoint;
  endpoint.kind = Endpoint::Kind::kUnix;
  endpoint.path = dir_ + "/c.sock";
  return endpoint;
}

Status LoadCoordinator::Start() {
  local::ProcessOptions options;
  options.argv = {local::BinaryDir() + "/holdfast-coordinator",
                  "--set",
                  "cluster=load",
                  "--set",
                  "listen=" + endpoint().ToString(),
                  "--set",
                  "retention.keep_last=" + std::to_string(keep_last_),
                  "--set",
                  "data_dir=" + dir_ + "/data"};
  options.log_path = log_path();
  HOLDFAST_ASSIGN_OR_RETURN(process_, local::Process::Start(options));
  const bool ready =
      local::WaitUntil([this] { return !process_.running() || coord::IsListening(endpoint()); },
                       std::chrono::seconds(20));
  if (ready && process_.running()) return Status::Ok();
  return UnavailableError("the coordinator did not start:\n" + local::ReadAll(log_path()));
}

}  // namespace holdfast::bench
