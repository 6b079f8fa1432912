#include "bench/live_client.h"

namespace holdfast::bench {

Status FromClient(const v1::Status& status) {
  return {ErrorFromNumber(static_cast<uint32_t>(status.code())), status.message()};
}

Result<LiveClient> LiveClient::Start(const std::string& dir, uint64_t bytes, int tensor_count,
                                     int disk_every) {
  std::vector<std::vector<float>> tensors;
  std::vector<v1::Tensor> state;
  uint64_t elements = bytes / 4 / static_cast<uint64_t>(tensor_count);
  for (int i = 0; i < tensor_count; ++i) {
    auto& tensor = tensors.emplace_back(elements);
    FillRandom(tensor.data(), elements * 4, static_cast<uint64_t>(i) + 1);
    state.push_back(v1::Whole("t" + std::to_string(i), tensor, {elements}));
  }
  HOLDFAST_ASSIGN_OR_RETURN(LiveClient live, StartWith(dir, bytes, disk_every, std::move(state)));
  live.tensors = std::move(tensors);
  return live;
}

Result<LiveClient> LiveClient::StartWith(const std::string& dir, uint64_t bytes, int disk_every,
                                         std::vector<v1::Tensor> state) {
  LiveClient live;
  local::ClusterOptions options;
  // Socket paths have a length limit: the sockets are in /tmp, the data on the disk to measure.
  HOLDFAST_ASSIGN_OR_RETURN(options.root, local::MakeTempDir("hf-bench"));
  options.data_dir_of[0] = dir + "/data";
  options.nodes = 1;
  options.disk_every = disk_every;
  options.arena_bytes = bytes * 4 + (256ULL << 20);
  live.cluster = std::make_unique<local::Cluster>(options);
  HOLDFAST_RETURN_IF_ERROR(live.cluster->Start());
  live.state = std::move(state);
  return live;
}

uint64_t LiveClient::bytes() const {
  uint64_t total = 0;
  for (const auto& tensor : tensors) total += tensor.size() * sizeof(float);
  return total;
}

Result<v1::Client> LiveClient::Open(const std::string& run_id) {
  v1::Options options;
  options.job = "bench";
  options.run_id = run_id;
  options.socket_path = cluster->AgentSocket(0);
  options.connect_timeout = std::chrono::seconds(60);
  auto client = v1::Client::Open(options, state);
  if (!client.ok()) return Fail(FromClient(client.status()));
  return std::move(*client);
}

}  // namespace holdfast::bench
