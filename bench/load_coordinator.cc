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
                  "node_lease_ms=" + std::to_string(lease_ms_),
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

Endpoint LoadCoordinator::RelayEndpoint(size_t relay) const {
  Endpoint endpoint;
  endpoint.kind = Endpoint::Kind::kUnix;
  endpoint.path = dir_ + "/r" + std::to_string(relay) + ".sock";
  return endpoint;
}

Status LoadCoordinator::StartRelays(uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    const Endpoint listen = RelayEndpoint(i);
    local::ProcessOptions options;
    options.argv = {local::BinaryDir() + "/holdfast-coordinator",
                    "--set",
                    "cluster=load",
                    "--set",
                    "role=relay",
                    "--set",
                    "listen=" + listen.ToString(),
                    "--set",
                    "upstream=[\"" + endpoint().ToString() + "\"]"};
    options.log_path = dir_ + "/relay" + std::to_string(i) + ".log";
    HOLDFAST_ASSIGN_OR_RETURN(local::Process relay, local::Process::Start(options));
    relays_.push_back(std::move(relay));
    const bool ready =
        local::WaitUntil([&] { return !relays_.back().running() || coord::IsListening(listen); },
                         std::chrono::seconds(20));
    if (!ready || !relays_.back().running()) {
      return UnavailableError("a relay did not start:\n" + local::ReadAll(options.log_path));
    }
  }
  return Status::Ok();
}

std::vector<Endpoint> LoadCoordinator::agent_endpoints() const {
  std::vector<Endpoint> all;
  for (size_t i = 0; i < relays_.size(); ++i) all.push_back(RelayEndpoint(i));
  if (all.empty()) all.push_back(endpoint());
  return all;
}

std::vector<pid_t> LoadCoordinator::relay_pids() const {
  std::vector<pid_t> pids;
  for (const local::Process& relay : relays_) pids.push_back(relay.pid());
  return pids;
}

}  // namespace holdfast::bench
