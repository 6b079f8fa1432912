#include "faults/drill/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/core/text.h"
#include "faults/drill/links.h"

namespace holdfast::faults {
using cli::Printable;
using coord::FromProto;
namespace {
bool SurvivesNode(const std::string& survives) {
  return survives.find(" of each group") != std::string::npos;
}
bool SurvivesPowerCut(const std::string& survives) {
  return survives.find("power cut") != std::string::npos;
}
}  // namespace

std::string DrillPlan::Target() const {
  std::string text = rank ? fmt::format("rank {}", *rank) : "";
  if (nodes.size() == 1) text += (text.empty() ? "" : " on ") + nodes[0];
  if (!peer.empty()) text += "," + peer;
  if (nodes.size() > 1) text = fmt::format("{} and the coordinator", Count(nodes.size(), "node"));
  if (nodes.empty()) text = "coordinator";
  return text;
}

/// Finds the nodes of the job. Refuses a job that would not be restarted.
Status DrillPlanner::CheckJob(const DrillTraits& traits, bool force) {
  HOLDFAST_ASSIGN_OR_RETURN(auto status, client_.GetStatus(job_));
  cluster_ = status.cluster();
  agents_.clear();
  for (const auto& node : status.nodes()) {
    if (node.alive()) agents_[node.node()] = node.data_address();
  }
  run_nodes_.clear();
  auto runs = client_.GetRuns(job_);
  if (!runs && runs.error().code() != ErrorCode::kNotFound) return runs.error();
  const bool running = runs && runs->runs_size() == 1 && runs->runs(0).phase() == "running";
  if (runs && runs->runs_size() == 1) {
    const coordinator::RunStatus& run = runs->runs(0);
    run_nodes_.assign(run.nodes().begin(), run.nodes().end());
    ranks_per_node_ = std::max(run.spec().ranks_per_node(), 1U);
    const bool last = run.restarts() >= run.spec().restarts_max();
    if (traits.restarts && last && !force) {
      return FailedPreconditionError(
          fmt::format("job '{}' has used all of its {} restarts and would not be restarted "
                      "(--force runs the drill anyway)",
                      job_, run.spec().restarts_max()));
    }
  }
  if (running) return Status::Ok();
  if (run_nodes_.empty()) {
    return FailedPreconditionError(
        fmt::format("job '{}' was not launched by `holdfast run`: it would not be restarted, and "
                    "the nodes of its ranks are unknown",
                    job_));
  }
  if (force) return Status::Ok();
  return FailedPreconditionError(
      fmt::format("job '{}' is {} and not running: a drill would have no meaningful result "
                  "(--force runs it anyway)",
                  job_, runs->runs(0).phase()));
}

/// The store has the records of all jobs, and this drill adopts those of one job.
Status DrillPlanner::CheckOtherJobs(bool force) {
  HOLDFAST_ASSIGN_OR_RETURN(const auto status, client_.GetStatus(""));
  for (const auto& job : status.jobs()) {
    if (job.job() == job_ || force) continue;
    return FailedPreconditionError(fmt::format(
        "lose-store would also lose the records of job '{}', and only '{}' is adopted again "
        "(--force runs the drill anyway)",
        Printable(job.job()), job_));
  }
  return Status::Ok();
}

Status DrillPlanner::ChooseTarget(const DrillTarget& target, Random& random, DrillPlan* plan) {
  const DrillTraits& traits = TraitsOf(plan->kind);
  const auto ranks = static_cast<uint32_t>(run_nodes_.size()) * ranks_per_node_;
  if (!traits.of_rank && target.rank) {
    return InvalidArgumentError(fmt::format("the target of {} cannot be a rank", traits.name));
  }
  if (!traits.of_rank && !traits.of_node && !target.node.empty()) {
    return InvalidArgumentError(fmt::format("{} takes no target", traits.name));
  }
  const bool of_links = plan->kind == DrillKind::kPartition || plan->kind == DrillKind::kSlowLink;
  if (!of_links && !target.peer.empty()) {
    return InvalidArgumentError(
        fmt::format("{} takes one node: only partition and slow-link take two", traits.name));
  }
  if (!target.peer.empty() && agents_.count(target.peer) == 0) {
    return NotFoundError(fmt::format("there is no node '{}'", Printable(target.peer)));
  }
  plan->peer = target.peer;
  if (target.rank && *target.rank >= ranks) {
    return NotFoundError(fmt::format("job '{}' has no rank {}: its ranks are 0 to {}", job_,
                                     *target.rank, ranks - 1));
  }
  // Ranks are numbered by node: node i of the run has ranks i * ranks_per_node_ and following.
  const auto place = std::find(run_nodes_.begin(), run_nodes_.end(), target.node);
  if (!target.node.empty() && place == run_nodes_.end()) {
    return NotFoundError(fmt::format("no rank of job '{}' runs on node '{}': it runs on {}", job_,
                                     Printable(target.node), fmt::join(run_nodes_, ", ")));
  }
  uint64_t node = random.Below(run_nodes_.size());
  if (!target.node.empty()) node = static_cast<uint64_t>(place - run_nodes_.begin());
  if (traits.of_rank) {
    const uint64_t local = random.Below(ranks_per_node_);
    plan->rank = target.rank.value_or(static_cast<uint32_t>(node * ranks_per_node_ + local));
    node = *plan->rank / ranks_per_node_;
  }
  if (traits.of_rank || traits.of_node) plan->nodes = {run_nodes_[node]};
  if (plan->kind == DrillKind::kPowerLoss) {
    for (const auto& [name, address] : agents_) plan->nodes.push_back(name);
  }
  plan->coordinator = plan->kind == DrillKind::kPowerLoss ||
                      plan->kind == DrillKind::kKillCoordinator ||
                      plan->kind == DrillKind::kLoseStore;
  for (const std::string& name : plan->nodes) {
    if (agents_.count(name) == 0) {
      return UnavailableError(fmt::format("the agent of node {} does not answer", name));
    }
  }
  return Status::Ok();
}

/// Refuses a drill after which no version could be restored.
Status DrillPlanner::CheckSurvival(DrillKind kind, bool force, DrillPlan* plan) {
  if (!TraitsOf(kind).restarts && kind != DrillKind::kCorruptShard) return Status::Ok();
  HOLDFAST_ASSIGN_OR_RETURN(auto listed, client_.ListVersions(job_, true));
  bool survives = false;
  for (const auto& info : listed.versions()) {
    const bool node = SurvivesNode(info.survives());
    const bool power_cut = SurvivesPowerCut(info.survives());
    const bool on_disk = (info.available_tiers() & TierBit(Tier::kDisk)) != 0;
    bool enough = info.restorable();
    // A spare may replace a node that is cut off.
    if (kind == DrillKind::kKillNode || kind == DrillKind::kPartition) enough = node || power_cut;
    if (kind == DrillKind::kPowerLoss) enough = power_cut;
    if (kind == DrillKind::kLoseStore) enough = on_disk;
    if (kind == DrillKind::kCorruptShard) enough = node && on_disk;
    if (kind == DrillKind::kCorruptShard && on_disk && !plan->version && (enough || force)) {
      plan->version = FromProto(info.version());
    }
    survives = survives || enough;
  }
  if (kind == DrillKind::kCorruptShard && force && !plan->version) {
    return NotFoundError(fmt::format("job '{}' has no version on disk to corrupt", job_));
  }
  if (survives || force) return Status::Ok();
  const bool one_node = kind == DrillKind::kKillNode || kind == DrillKind::kPartition;
  const char* lacking = one_node                           ? "in memory with parity, or on disk"
                        : kind == DrillKind::kPowerLoss    ? "on disk"
                        : kind == DrillKind::kLoseStore    ? "on disk"
                        : kind == DrillKind::kCorruptShard ? "on disk with parity"
                                                           : "that can be restored";
  return FailedPreconditionError(
      fmt::format("job '{}' would not survive {}: it has no version {} (`holdfast versions {}`, "
                  "column SURVIVES; --force runs the drill anyway)",
                  job_, TraitsOf(kind).name, lacking, job_));
}

Result<DrillPlan> DrillPlanner::Plan(const DrillRequest& request, uint64_t seed) {
  DrillPlan plan;
  plan.kind = request.kind;
  plan.seed = seed;
  plan.job = job_;
  plan.duration_ms = request.duration_ms.value_or(TraitsOf(request.kind).duration_ms);
  if (request.kind == DrillKind::kSlowLink) plan.bytes_per_s = request.bytes_per_s;
  HOLDFAST_RETURN_IF_ERROR(CheckJob(TraitsOf(request.kind), request.force));
  if (request.kind == DrillKind::kLoseStore) {
    HOLDFAST_RETURN_IF_ERROR(CheckOtherJobs(request.force));
  }
  plan.cluster = cluster_;
  plan.agents = agents_;
  Random random(seed);
  HOLDFAST_RETURN_IF_ERROR(ChooseTarget(request.target, random, &plan));
  plan.force = request.force;
  HOLDFAST_RETURN_IF_ERROR(ChooseLinks(&plan));
  HOLDFAST_RETURN_IF_ERROR(ChooseVersion(&plan));
  return plan;
}

/// Chooses all of the node's links to other nodes, or the one to the peer.
Status DrillPlanner::ChooseLinks(DrillPlan* plan) {
  if (plan->kind != DrillKind::kPartition && plan->kind != DrillKind::kSlowLink) {
    return Status::Ok();
  }
  HOLDFAST_ASSIGN_OR_RETURN(auto status, client_.GetStatus(job_));
  HOLDFAST_ASSIGN_OR_RETURN(plan->others, LinksOf(status, plan->nodes[0], plan->peer));
  return Status::Ok();
}

Status DrillPlanner::ChooseVersion(DrillPlan* plan) {
  plan->version.reset();
  HOLDFAST_RETURN_IF_ERROR(CheckSurvival(plan->kind, plan->force, plan));
  if (plan->kind == DrillKind::kCorruptShard) {
    // The node with the rank's replica may differ from the node of the rank.
    HOLDFAST_ASSIGN_OR_RETURN(
        auto sources,
        client_.PlanRestore(job_, *plan->version, static_cast<uint32_t>(Tier::kDisk)));
    plan->nodes = {sources.sources(static_cast<int>(*plan->rank)).node()};
  }
  return Status::Ok();
}

}  // namespace holdfast::faults
