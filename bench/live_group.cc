#include "bench/live_group.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace holdfast::bench {
namespace {

constexpr std::chrono::seconds kTimeout(300);

/// Returns the user and system time of a process from /proc.
double CpuSecondsOf(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  // The name may contain spaces. Skip it and the 11 fields after it; user and system ticks follow.
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0;
  double system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace

double BytesToSend(const GroupShape& shape) {
  return static_cast<double>(shape.bytes) * (shape.nodes - 1) / (shape.nodes - shape.parity);
}

std::string NameOf(const GroupShape& shape) {
  return fmt::format("{}_{}", shape.nodes, shape.parity);
}

std::string LoadOf(const GroupShape& shape) {
  return fmt::format("{} MiB per node, {}", shape.bytes >> 20,
                     shape.rate_bytes_per_s == 0
                         ? "all nodes on this machine's cores"
                         : fmt::format("{} MB/s per node", shape.rate_bytes_per_s / 1'000'000));
}

Result<std::unique_ptr<LiveGroup>> LiveGroup::Start(const GroupShape& shape) {
  std::unique_ptr<LiveGroup> group(new LiveGroup(shape));
  HOLDFAST_ASSIGN_OR_RETURN(group->root_, local::MakeTempDir("hf-bench"));
  local::ClusterOptions options;
  options.root = group->root_;
  options.nodes = shape.nodes;
  options.disk_every = 1'000'000'000;
  options.arena_bytes =
      shape.bytes * 5 +
      shape.bytes * 2 / (shape.nodes - shape.parity) * static_cast<uint64_t>(shape.parity) +
      (64ULL << 20);
  options.agent_settings = {"peers.listen=127.0.0.1:0", "insecure_loopback=true",
                            "peers.connections_max=1024", "peers.build_timeout_ms=300000",
                            fmt::format("peers.rate_bytes_per_s={}", shape.rate_bytes_per_s)};
  options.coordinator_settings = {fmt::format("peers.group_nodes={}", shape.nodes),
                                  fmt::format("peers.parity={}", shape.parity)};
  group->cluster_ = std::make_unique<local::Cluster>(options);
  HOLDFAST_RETURN_IF_ERROR(group->cluster_->Start());
  for (int rank = 0; rank < shape.nodes; ++rank) {
    auto& tensor = group->tensors_.emplace_back(shape.bytes / sizeof(float));
    FillRandom(tensor.data(), tensor.size() * sizeof(float), static_cast<uint64_t>(rank) + 1);
  }
  HOLDFAST_RETURN_IF_ERROR(group->Connect("first"));
  return group;
}

LiveGroup::~LiveGroup() {
  clients_.clear();
  cluster_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}

Status LiveGroup::Connect(const std::string& run_id) {
  clients_.clear();
  for (size_t rank = 0; rank < tensors_.size(); ++rank) {
    v1::Options options;
    options.job = "bench";
    options.rank = static_cast<uint32_t>(rank);
    options.world = static_cast<uint32_t>(tensors_.size());
    options.run_id = run_id;
    options.socket_path = cluster_->AgentSocket(static_cast<int>(rank));
    options.connect_timeout = kTimeout;
    options.agent_timeout = kTimeout;
    const v1::Tensor state = v1::Whole("state", tensors_[rank], {tensors_[rank].size()});
    auto client = v1::Client::Open(options, {&state, 1});
    if (!client.ok()) return FromClient(client.status());
    clients_.push_back(std::make_unique<v1::Client>(std::move(*client)));
  }
  return Status::Ok();
}

Status LiveGroup::Save(uint64_t step) {
  for (auto& client : clients_) {
    HOLDFAST_RETURN_IF_ERROR(FromClient(client->Save(step, {}, nullptr, kTimeout)));
  }
  return Status::Ok();
}

Status LiveGroup::Await(uint64_t step, v1::Tier tier) {
  for (auto& client : clients_) {
    HOLDFAST_RETURN_IF_ERROR(FromClient(client->Wait(step, tier, kTimeout)));
  }
  return Status::Ok();
}

Status LiveGroup::LoseNode(int node) {
  clients_.clear();
  cluster_->DestroyNode(node);
  HOLDFAST_RETURN_IF_ERROR(cluster_->StartAgent(node));
  return cluster_->AwaitAgent(node);
}

Result<LiveGroup::Account> LiveGroup::Accounts() {
  Account account;
  for (int node = 0; node < shape_.nodes; ++node) {
    HOLDFAST_ASSIGN_OR_RETURN(auto answer, cluster_->Cli({"dump", fmt::format("n{}", node)}));
    const auto document = nlohmann::json::parse(answer.out, nullptr, false);
    if (!document.is_object() || !document["dump"]["peers"].is_object()) {
      return Fail(InternalError("holdfast dump returned no data about peers: " + answer.errors));
    }
    const auto& peers = document["dump"]["peers"];
    account.sent_bytes +=
        peers["data_bytes"].get<uint64_t>() + peers["frame_bytes"].get<uint64_t>();
    account.cpu_seconds += CpuSecondsOf(cluster_->agent(node).pid());
  }
  return account;
}

}  // namespace holdfast::bench
