#include <fmt/format.h>

#include <algorithm>

#include "coordinator/restart/supervisor.h"

// GPU errors that the nodes' drivers report. They are evidence for other faults. A node with a
// broken GPU gets no workers while other nodes are available. An error alone stops no job: many
// jobs continue, and the supervisor notices those that fail anyway.

namespace holdfast::coord {
namespace {
using std::chrono::milliseconds;
constexpr size_t kErrorsKept = 16;  // per node
constexpr size_t kErrorsShown = 8;
/// Ages up to which an error may be the cause of a failure, and is listed as evidence.
constexpr auto kCauseWindow = std::chrono::minutes(1);
constexpr auto kEvidenceWindow = std::chrono::minutes(10);
/// By then an operator has reset the GPU or quarantined the node.
constexpr std::chrono::nanoseconds kSuspectFor = std::chrono::hours(24);
constexpr int64_t kAgoMsMax = 3'600'000;

std::string TextOf(const GpuFailed& event) {
  std::string gpu = event.device == kGpuUnknown ? "a GPU" : fmt::format("GPU {}", event.device);
  if (!event.bus_id.empty()) gpu += fmt::format(" ({})", event.bus_id);
  return fmt::format("Xid {} on {} of node {}: {}", event.xid, gpu, event.node,
                     MeaningOf(event.xid).text);
}
}  // namespace

void Supervisor::On(const GpuFailed& event) {
  auto found = nodes_.find(event.node);
  if (found == nodes_.end()) return;
  Node& node = found->second;
  if (node.agent_start != event.agent_start || event.number <= node.newest_gpu_error) return;
  node.newest_gpu_error = event.number;
  GpuError error;
  error.what = TextOf(event);
  error.kind = MeaningOf(event.xid).kind;
  error.at = at_.now - milliseconds(std::clamp<int64_t>(event.ago_ms, 0, kAgoMsMax));
  if (error.kind == XidClass::kBroken) MarkSuspect(event.node, error.what);

  std::set<std::string> jobs(event.jobs.begin(), event.jobs.end());
  if (const Run* run = PlacedOn(event.node)) jobs.insert(run->record.spec.job);
  for (const std::string& job : jobs) {
    Failure failure;
    failure.kind = "GPU error";
    failure.what = error.what;
    failure.nodes = {event.node};
    failure.healthy_until = error.at;
    Note(job, failure,
         error.kind == XidClass::kBroken
             ? "the next launch avoids the node if another is available; reset or repair the GPU"
             : "none: needs an operator");
  }
  node.gpu_errors.push_back(std::move(error));
  if (node.gpu_errors.size() > kErrorsKept) node.gpu_errors.pop_front();
}

/// Loads a stored error. It counts as a cause and as evidence, as it did before the restart of the
/// coordinator.
void Supervisor::RestoreSuspect(const SuspectRecord& record) {
  suspects_[record.node] = record;
  const std::chrono::nanoseconds ago(at_.wall_nanos - record.wall_nanos);
  GpuError error;
  error.what = record.why;
  error.kind = XidClass::kBroken;
  error.at = at_.now - std::clamp(ago, std::chrono::nanoseconds(0), kSuspectFor);
  nodes_[record.node].gpu_errors.push_back(std::move(error));
}

void Supervisor::MarkSuspect(const std::string& node, const std::string& why) {
  const SuspectRecord record{node, why, at_.wall_nanos};
  suspects_[node] = record;
  effects_.emplace_back(PutSuspect{record});
}

void Supervisor::ClearSuspect(const std::string& node) {
  if (suspects_.erase(node) != 0) effects_.emplace_back(EraseSuspect{node});
}

bool Supervisor::IsSuspect(const std::string& node) const {
  auto found = suspects_.find(node);
  return found != suspects_.end() &&
         at_.wall_nanos - found->second.wall_nanos < kSuspectFor.count();
}

bool Supervisor::HardwareFailedRecently(const std::string& node) const {
  auto found = nodes_.find(node);
  if (found == nodes_.end()) return false;
  const auto& errors = found->second.gpu_errors;
  return std::any_of(errors.begin(), errors.end(), [this](const GpuError& error) {
    return at_.now - error.at < kCauseWindow &&
           (error.kind == XidClass::kBroken || error.kind == XidClass::kContained);
  });
}

/// Puts the newest GPU errors of the nodes before the other evidence, since they may explain it.
void Supervisor::AddGpuErrors(const std::vector<std::string>& nodes, Failure& failure) const {
  std::vector<const GpuError*> errors;
  for (const std::string& name : nodes) {
    auto found = nodes_.find(name);
    if (found == nodes_.end()) continue;
    for (const GpuError& error : found->second.gpu_errors) {
      if (at_.now - error.at < kEvidenceWindow) errors.push_back(&error);
    }
  }
  std::stable_sort(errors.begin(), errors.end(),
                   [](const GpuError* a, const GpuError* b) { return a->at > b->at; });
  if (errors.size() > kErrorsShown) errors.resize(kErrorsShown);
  std::vector<std::string> evidence;
  for (const GpuError* error : errors) {
    const auto ago = std::chrono::duration<double>(at_.now - error->at);
    evidence.push_back(fmt::format("{:.1f} s before: {}", ago.count(), error->what));
  }
  failure.evidence.insert(failure.evidence.begin(), evidence.begin(), evidence.end());
}

std::set<std::string> Supervisor::NodesToAvoid(const Run& run) const {
  std::set<std::string> avoid = run.avoid;
  for (const auto& [name, record] : suspects_) {
    if (IsSuspect(name)) avoid.insert(name);
  }
  return avoid;
}

std::vector<std::string> Supervisor::Suspects() const {
  std::vector<std::string> names;
  for (const auto& [name, record] : suspects_) {
    if (IsSuspect(name)) names.push_back(name);
  }
  return names;
}

}  // namespace holdfast::coord
