#include "tests/e2e/saving_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/random.h"

namespace holdfast::local {
namespace {
using std::chrono::milliseconds;
constexpr milliseconds kConnectTimeout(30'000);
const std::string kJob = "saved";

/// Makes a run ID that is unique among concurrent tests.
std::string RunId(uint64_t start) { return fmt::format("start-{}-{}", start, RandomHex(4)); }

VersionId IdOf(const v1::Version& version) {
  return {Incarnation{version.incarnation}, Step{version.step}};
}

Status FromClient(const std::string& what, const v1::Status& status) {
  return UnavailableError(what + ": " + status.ToString());
}
}  // namespace

SavingJob::SavingJob(Cluster& cluster, int ranks, uint64_t words)
    : cluster_(cluster), states_(static_cast<size_t>(ranks), std::vector<uint64_t>(words)) {}

SavingJob::~SavingJob() { Close(); }

void SavingJob::Close() {
  for (auto& client : clients_) client->Close(milliseconds(0)).Ignore();
  clients_.clear();
}

Status SavingJob::Open(std::vector<int> nodes) {
  Close();
  ++starts_;
  const std::string run_id = RunId(starts_);
  const auto world = static_cast<int>(states_.size());
  for (int rank = 0; rank < world; ++rank) {
    std::vector<uint64_t>& state = states_[static_cast<size_t>(rank)];
    v1::Options options;
    options.job = kJob;
    options.rank = static_cast<uint32_t>(rank);
    options.world = static_cast<uint32_t>(world);
    options.run_id = run_id;
    options.socket_path =
        cluster_.AgentSocket(nodes.empty() ? rank : nodes[static_cast<size_t>(rank)]);
    options.connect_timeout = kConnectTimeout;
    const std::vector<v1::Tensor> tensors = {v1::Whole("words", state, {state.size()})};
    auto client = v1::Client::Open(options, tensors);
    if (!client.ok()) return FromClient(fmt::format("open rank {}", rank), client.status());
    clients_.push_back(std::make_unique<v1::Client>(std::move(*client)));
  }
  return Status::Ok();
}

void SavingJob::Fill(std::vector<uint64_t>& state, int rank, VersionId version) const {
  Random random(version.incarnation.value << 40 | version.step.value << 8 |
                static_cast<uint64_t>(rank));
  for (uint64_t& word : state) word = random.Next();
}

uint64_t SavingJob::Save() {
  ++step_;
  for (int rank = 0; rank < static_cast<int>(states_.size()); ++rank) {
    client(rank).Guard().Ignore();
    Fill(states_[static_cast<size_t>(rank)], rank, {Incarnation{starts_}, Step{step_}});
    client(rank).Save(step_).Ignore();
  }
  return step_;
}

std::optional<VersionId> SavingJob::Newest(v1::Tier tier, std::optional<int> rank) {
  std::optional<VersionId> newest;
  for (int r = 0; r < static_cast<int>(clients_.size()); ++r) {
    if (rank && *rank != r) continue;
    const auto latest = client(r).Latest(tier);
    if (latest && (!newest || IdOf(*latest) > *newest)) newest = IdOf(*latest);
  }
  return newest;
}

Status SavingJob::Check(int rank, VersionId version) const {
  std::vector<uint64_t> expected(states_[static_cast<size_t>(rank)].size());
  Fill(expected, rank, version);
  if (expected == states_[static_cast<size_t>(rank)]) return Status::Ok();
  return DataLossError(
      fmt::format("rank {} restored other bytes than it saved as {}", rank, ToString(version)));
}

Result<SavingJob::Restored> SavingJob::Restore(milliseconds timeout) {
  std::vector<Status> outcomes(states_.size());
  std::vector<v1::Restored> restored(states_.size());
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < states_.size(); ++rank) {
    std::fill(states_[rank].begin(), states_[rank].end(), 0);
    ranks.emplace_back([&, rank] {
      auto got = clients_[rank]->Restore(std::nullopt, timeout);
      // The agent may be restarting: retry, as a launcher does.
      WaitUntil(
          [&] {
            if (got.ok() || got.status().code() != v1::Code::kUnavailable) return true;
            got = clients_[rank]->Restore(std::nullopt, timeout);
            return false;
          },
          timeout);
      if (got.ok()) {
        restored[rank] = std::move(*got);
      } else {
        outcomes[rank] = FromClient(fmt::format("restore rank {}", rank), got.status());
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  Restored all;
  for (size_t rank = 0; rank < states_.size(); ++rank) {
    HOLDFAST_RETURN_IF_ERROR(outcomes[rank]);
    const VersionId version = IdOf(restored[rank].version);
    if (rank > 0 && version != all.version) {
      return Fail(InternalError(fmt::format("rank 0 restored {}, rank {} restored {}",
                                            ToString(all.version), rank, ToString(version))));
    }
    all.version = version;
    all.tiers.push_back(restored[rank].tier);
    HOLDFAST_RETURN_IF_ERROR(Check(static_cast<int>(rank), version));
  }
  step_ = all.version.step.value;
  return all;
}

}  // namespace holdfast::local
