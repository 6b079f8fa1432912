#include "coordinator/server/page_source.h"

#include <future>

#include "coordinator/api/convert.h"
#include "coordinator/server/answers.h"
#include "coordinator/server/run_answers.h"

namespace holdfast::coord {
namespace {
constexpr auto kPageQueryTimeout = std::chrono::seconds(2);

using LagsByJob = std::map<std::string, std::vector<ParityLag>>;

void AddLags(const LagsByJob& lags, std::map<std::string, std::vector<ui::RankReading>>& ranks) {
  for (auto& [job, readings] : ranks) {
    const auto found = lags.find(job);
    if (found == lags.end()) continue;
    for (ui::RankReading& reading : readings) {
      if (reading.rank >= found->second.size()) continue;
      reading.parity_lag_versions = found->second[reading.rank].versions;
      reading.parity_lag_ms = found->second[reading.rank].ms;
    }
  }
}
}  // namespace

ui::UiInput PageSource::Collect() {
  struct Answer {
    ui::UiInput input;
    LagsByJob lags;
    std::promise<void> filled;
  };
  // Shared with the queries, which may be answered after this function has returned.
  auto answer = std::make_shared<Answer>();
  std::future<void> known = answer->filled.get_future();
  bool accepted = applier_.Query([this, answer](const State* state, Epoch epoch) {
    if (state == nullptr) return;
    view::ClusterSnapshot& snapshot = answer->input.cluster;
    FillStatus(*state, cluster_, epoch, "", &snapshot.status);
    snapshot.status.set_stopped_why(applier_.stopped_why());
    for (const auto& job : snapshot.status.jobs()) {
      coordinator::ListVersionsRequest request;
      request.set_job(job.job());
      FillVersions(*state, request, &snapshot.versions[job.job()]);
      answer->lags[job.job()] = state->ParityLags(job.job());
    }
    answer->input.loaded = true;
  });
  accepted = accepted && applier_.Query([answer](const Supervisor* supervisor) {
    if (supervisor != nullptr) {
      FillRuns(*supervisor, "", &answer->input.cluster.runs);
      FillIncidents(*supervisor, {}, &answer->input.incidents);
    }
    answer->filled.set_value();
  });
  if (!accepted || known.wait_for(kPageQueryTimeout) != std::future_status::ready) return {};
  ui::UiInput input = std::move(answer->input);
  input.cluster.now_wall_nanos = clock_.WallNanos();
  input.ranks = watcher_.Readings();
  AddLags(answer->lags, input.ranks);
  return input;
}

Result<coordinator::WhatIfLostReply> PageSource::Impact(const std::string& node) {
  auto promise = std::make_shared<std::promise<coordinator::WhatIfLostReply>>();
  auto known = promise->get_future();
  const bool accepted = applier_.Query([promise, node](const State* state, Epoch) {
    coordinator::WhatIfLostReply reply;
    coordinator::WhatIfLostRequest request;
    request.add_nodes(node);
    if (state == nullptr) {
      ToProto(UnavailableError("the coordinator loads its state"), reply.mutable_outcome());
    } else {
      FillImpact(*state, request, &reply);
    }
    promise->set_value(std::move(reply));
  });
  if (!accepted || known.wait_for(kPageQueryTimeout) != std::future_status::ready) {
    return Fail(UnavailableError("the coordinator does not answer: try again"));
  }
  coordinator::WhatIfLostReply reply = known.get();
  HOLDFAST_RETURN_IF_ERROR(FromProto(reply.outcome()));
  return reply;
}

}  // namespace holdfast::coord
