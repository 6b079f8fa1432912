#include "coordinator/restart/gpus.h"

#include <fmt/format.h>

#include <algorithm>

namespace holdfast::coord {
namespace {
using std::chrono::milliseconds;
constexpr size_t kErrorsKept = 16;  // per node
constexpr size_t kErrorsShown = 8;
/// Ages up to which an error may be the cause of a failure, and up to which it is evidence.
constexpr auto kCauseWindow = std::chrono::minutes(1);
constexpr auto kEvidenceWindow = std::chrono::minutes(10);
/// How long a node stays suspect. By then an operator has reset the GPU or quarantined the node.
constexpr std::chrono::nanoseconds kSuspectFor = std::chrono::hours(24);
constexpr int64_t kAgoMsMax = 3'600'000;

std::string TextOf(const GpuFailed& event) {
  std::string gpu = event.device == kGpuUnknown ? "a GPU" : fmt::format("GPU {}", event.device);
  if (!event.bus_id.empty()) gpu += fmt::format(" ({})", event.bus_id);
  return fmt::format("Xid {} on {} of node {}: {}", event.xid, gpu, event.node,
                     MeaningOf(event.xid).text);
}

void MarkSuspect(RunContext& context, const std::string& node, const std::string& why) {
  const SuspectRecord record{node, why, context.at.wall_nanos};
  context.table.suspects[node] = record;
  context.effects.emplace_back(PutSuspect{record});
}

bool IsSuspect(const RunReadContext& context, const std::string& node) {
  auto found = context.table.suspects.find(node);
  return found != context.table.suspects.end() &&
         context.at.wall_nanos - found->second.wall_nanos < kSuspectFor.count();
}
}  // namespace

void RecordGpuError(RunContext& context, const GpuFailed& event) {
  auto found = context.table.nodes.find(event.node);
  if (found == context.table.nodes.end()) return;
  WorkerNode& node = found->second;
  if (node.agent_start != event.agent_start || event.number <= node.newest_gpu_error) return;
  node.newest_gpu_error = event.number;
  GpuError error;
  error.what = TextOf(event);
  error.kind = MeaningOf(event.xid).kind;
  error.at = context.at.now - milliseconds(std::clamp<int64_t>(event.ago_ms, 0, kAgoMsMax));
  if (error.kind == XidClass::kBroken) MarkSuspect(context, event.node, error.what);

  std::set<std::string> jobs(event.jobs.begin(), event.jobs.end());
  if (const Run* run = PlacedOn(context, event.node)) jobs.insert(run->record.spec.job);
  for (const std::string& job : jobs) {
    Failure failure;
    failure.kind = "GPU error";
    failure.what = error.what;
    failure.nodes = {event.node};
    failure.healthy_until = error.at;
    NoteIncident(
        context, job, failure,
        error.kind == XidClass::kBroken
            ? "the next launch avoids the node if another is available; reset or repair the GPU"
            : "none: needs an operator");
  }
  node.gpu_errors.push_back(std::move(error));
  if (node.gpu_errors.size() > kErrorsKept) node.gpu_errors.pop_front();
}

void RestoreSuspect(RunContext& context, const SuspectRecord& record) {
  context.table.suspects[record.node] = record;
  const std::chrono::nanoseconds ago(context.at.wall_nanos - record.wall_nanos);
  GpuError error;
  error.what = record.why;
  error.kind = XidClass::kBroken;
  error.at = context.at.now - std::clamp(ago, std::chrono::nanoseconds(0), kSuspectFor);
  context.table.nodes[record.node].gpu_errors.push_back(std::move(error));
}

void ClearSuspect(RunContext& context, const std::string& node) {
  if (context.table.suspects.erase(node) != 0) context.effects.emplace_back(EraseSuspect{node});
}

std::vector<std::string> SuspectNodes(const RunReadContext& context) {
  std::vector<std::string> names;
  for (const auto& [name, record] : context.table.suspects) {
    if (IsSuspect(context, name)) names.push_back(name);
  }
  return names;
}

bool HardwareFailedRecently(const RunReadContext& context, const std::string& node) {
  auto found = context.table.nodes.find(node);
  if (found == context.table.nodes.end()) return false;
  const auto& errors = found->second.gpu_errors;
  return std::any_of(errors.begin(), errors.end(), [&context](const GpuError& error) {
    return context.at.now - error.at < kCauseWindow &&
           (error.kind == XidClass::kBroken || error.kind == XidClass::kContained);
  });
}

void AddGpuErrors(const RunReadContext& context, const std::vector<std::string>& nodes,
                  Failure& failure) {
  std::vector<const GpuError*> errors;
  for (const std::string& name : nodes) {
    auto found = context.table.nodes.find(name);
    if (found == context.table.nodes.end()) continue;
    for (const GpuError& error : found->second.gpu_errors) {
      if (context.at.now - error.at < kEvidenceWindow) errors.push_back(&error);
    }
  }
  std::stable_sort(errors.begin(), errors.end(),
                   [](const GpuError* a, const GpuError* b) { return a->at > b->at; });
  if (errors.size() > kErrorsShown) errors.resize(kErrorsShown);
  std::vector<std::string> evidence;
  for (const GpuError* error : errors) {
    const auto ago = std::chrono::duration<double>(context.at.now - error->at);
    evidence.push_back(fmt::format("{:.1f} s before: {}", ago.count(), error->what));
  }
  failure.evidence.insert(failure.evidence.begin(), evidence.begin(), evidence.end());
}

}  // namespace holdfast::coord
