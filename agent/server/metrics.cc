#include "agent/server/metrics.h"

#include <algorithm>
#include <array>
#include <map>

#include "agent/pipeline/rank_status.h"

namespace holdfast::agent {
namespace {
using coord::MetricsPage;
using coord::MetricSpec;
using Kind = coord::MetricKind;

constexpr MetricSpec kSessions{"holdfast_agent_trainers", Kind::kGauge, "Trainers connected."};
constexpr MetricSpec kBudget{"holdfast_agent_arena_budget_bytes", Kind::kGauge,
                             "Memory that checkpoints may take on this node."};
constexpr MetricSpec kReserved{"holdfast_agent_arena_reserved_bytes", Kind::kGauge,
                               "Memory of that budget that is reserved for ranks and parity."};
constexpr MetricSpec kSegments{"holdfast_agent_arena_segments", Kind::kGauge,
                               "Ranks and parity shards that have memory on this node."};
constexpr MetricSpec kSlots{"holdfast_agent_slots",
                            Kind::kGauge,
                            "Slots of the job's segments, by state: `free`, `leased` (being copied "
                            "to) or `sealed`.",
                            {"holdfast_job", "state"}};
constexpr MetricSpec kSealedStep{"holdfast_agent_sealed_step",
                                 Kind::kGauge,
                                 "Newest step that any rank of this node has sealed in memory.",
                                 {"holdfast_job"}};
constexpr MetricSpec kJobArena{"holdfast_agent_job_arena_bytes",
                               Kind::kGauge,
                               "Memory of this node's arena that is reserved for the job, with its "
                               "parity.",
                               {"holdfast_job"}};
constexpr MetricSpec kJobArenaLimit{"holdfast_agent_job_arena_limit_bytes", Kind::kGauge,
                                    "Memory of the arena that one job may have; missing: no "
                                    "limit."};
constexpr MetricSpec kJobDisk{"holdfast_agent_job_disk_bytes",
                              Kind::kGauge,
                              "Shards of the job on this node's disks, with its parity.",
                              {"holdfast_job"}};
constexpr MetricSpec kJobDiskLimit{"holdfast_agent_job_disk_limit_bytes", Kind::kGauge,
                                   "Bytes that one job may have on the disks; missing: no limit."};
constexpr MetricSpec kDiskShards{"holdfast_agent_disk_shards", Kind::kGauge,
                                 "Shards published on this node's disks."};
constexpr MetricSpec kDiskFree{"holdfast_agent_disk_free_bytes", Kind::kGauge,
                               "Free space in the data directories."};
constexpr MetricSpec kScrubPasses{"holdfast_agent_scrub_passes_total", Kind::kCounter,
                                  "Completed passes of the scrubber over all shards of this node."};
constexpr MetricSpec kScrubBytes{"holdfast_agent_scrub_checked_bytes_total", Kind::kCounter,
                                 "Bytes that the scrubber read and compared with checksums."};
constexpr MetricSpec kScrubDamaged{"holdfast_agent_scrub_damaged_total", Kind::kCounter,
                                   "Replicas that the scrubber found damaged."};
constexpr MetricSpec kPeerReceived{"holdfast_agent_peer_received_bytes_total", Kind::kCounter,
                                   "Data read from other nodes and verified."};
constexpr MetricSpec kPeerSent{"holdfast_agent_peer_sent_bytes_total", Kind::kCounter,
                               "Data sent to other nodes, without frames."};
constexpr MetricSpec kPeerFrames{"holdfast_agent_peer_frame_bytes_total", Kind::kCounter,
                                 "Frames around the sent data."};
constexpr MetricSpec kPeerStreams{"holdfast_agent_peer_streams_total", Kind::kCounter,
                                  "Requests of other nodes that were served."};
constexpr MetricSpec kPeerConnections{
    "holdfast_agent_peer_connections_total",
    Kind::kCounter,
    "Connections of other nodes by outcome: `accepted`; `rejected`, "
    "accepted ones that failed authentication; `refused`, those over "
    "the limit.",
    {"outcome"}};
constexpr MetricSpec kPeerHandshakes{
    "holdfast_agent_peer_handshakes_total",
    Kind::kCounter,
    "Connections of other nodes that completed the handshake, by what protects their frames: "
    "`tls`, encryption; `mac`, tags; `plain`, nothing, on one machine only.",
    {"mode"}};
constexpr MetricSpec kPeerYielded{"holdfast_agent_peer_yielded_seconds_total", Kind::kCounter,
                                  "Time that data for other nodes waited for the trainers' own "
                                  "traffic."};
constexpr MetricSpec kWorkers{"holdfast_agent_workers",
                              Kind::kGauge,
                              "Workers that the agent launched: `running`, `ended` or `stuck`.",
                              {"phase"}};
constexpr MetricSpec kDigests{"holdfast_agent_telemetry_digests_total",
                              Kind::kCounter,
                              "Telemetry digests, by whether the coordinator accepted them: `sent` "
                              "or `unsent`.",
                              {"outcome"}};
constexpr MetricSpec kGaps{"holdfast_agent_telemetry_lost_records_total",
                           Kind::kCounter,
                           "Records of trainers that digests lack: `dropped` by the trainer for "
                           "lack of space, `overwritten` before they were read, `nonsense`.",
                           {"why"}};
constexpr MetricSpec kGpuErrors{
    "holdfast_agent_gpu_errors_total",
    Kind::kCounter,
    "Errors of GPUs that the driver reported (Xids), by the driver's GPU index.",
    {"device", "xid"}};

constexpr const MetricSpec* kMetricSpecs[] = {&kSessions,
                                              &kBudget,
                                              &kReserved,
                                              &kSegments,
                                              &kSlots,
                                              &kSealedStep,
                                              &kJobArena,
                                              &kJobArenaLimit,
                                              &kJobDisk,
                                              &kJobDiskLimit,
                                              &kDiskShards,
                                              &kDiskFree,
                                              &kScrubPasses,
                                              &kScrubBytes,
                                              &kScrubDamaged,
                                              &kPeerReceived,
                                              &kPeerSent,
                                              &kPeerFrames,
                                              &kPeerStreams,
                                              &kPeerConnections,
                                              &kPeerHandshakes,
                                              &kPeerYielded,
                                              &kWorkers,
                                              &kDigests,
                                              &kGaps,
                                              &kGpuErrors,
                                              &coord::kInvariantViolations,
                                              &coord::kDroppedSeries};

template <typename Number>
double Value(Number number) {
  return static_cast<double>(number);
}

void ShowSlots(Node& node, MetricsPage& page) {
  struct Slots {
    std::array<uint64_t, 3> by_state = {};
    std::optional<VersionId> newest;
  };
  std::map<std::string, Slots> jobs;
  for (const RankStatus& rank : StatusOf(node.ranks())) {
    Slots& slots = jobs[rank.owner.job];
    for (const SlotStatus& slot : rank.slots) {
      ++slots.by_state[static_cast<size_t>(slot.info.state)];
      const bool trainers = slot.info.state == SlotState::kSealed && !IsParity(rank.owner.rank);
      if (trainers) slots.newest = std::max(slots.newest, std::optional(slot.info.version));
    }
  }
  for (const auto& [job, slots] : jobs) {
    page.Set(kSlots, Value(slots.by_state[0]), {job, "free"});
    page.Set(kSlots, Value(slots.by_state[1]), {job, "leased"});
    page.Set(kSlots, Value(slots.by_state[2]), {job, "sealed"});
    if (slots.newest) page.Set(kSealedStep, Value(slots.newest->step.value), {job});
  }
}

void Show(const TcpPeerServer& peers, MetricsPage& page) {
  const PeerServerCounters& counters = peers.counters();
  page.Set(kPeerSent, Value(counters.data_bytes.load()));
  page.Set(kPeerFrames, Value(counters.frame_bytes.load()));
  page.Set(kPeerStreams, Value(counters.streams.load()));
  page.Set(kPeerConnections, Value(counters.connections.load()), {"accepted"});
  page.Set(kPeerConnections, Value(counters.rejected.load()), {"rejected"});
  page.Set(kPeerConnections, Value(counters.refused.load()), {"refused"});
  for (const FrameMode mode : kFrameModes) {
    page.Set(kPeerHandshakes, Value(counters.modes.count(mode)), {ToString(mode)});
  }
  page.Set(kPeerYielded, std::chrono::duration<double>(peers.yielded()).count());
}

void Show(WorkerManager& workers, MetricsPage& page) {
  std::map<WorkerPhase, uint64_t> by_phase;
  for (const WorkerState& worker : workers.Workers()) ++by_phase[worker.phase];
  page.Set(kWorkers, Value(by_phase[WorkerPhase::kRunning]), {"running"});
  page.Set(kWorkers, Value(by_phase[WorkerPhase::kEnded]), {"ended"});
  page.Set(kWorkers, Value(by_phase[WorkerPhase::kStuck]), {"stuck"});
}

void Show(const TelemetrySender& telemetry, MetricsPage& page) {
  const TelemetrySender::Counts counts = telemetry.counts();
  page.Set(kDigests, Value(counts.sent), {"sent"});
  page.Set(kDigests, Value(counts.unsent), {"unsent"});
  page.Set(kGaps, Value(counts.dropped), {"dropped"});
  page.Set(kGaps, Value(counts.overwritten), {"overwritten"});
  page.Set(kGaps, Value(counts.nonsense), {"nonsense"});
}
}  // namespace

coord::MetricSpecs AgentMetrics() { return kMetricSpecs; }

MetricsPage CollectMetrics(const AgentParts& parts) {
  MetricsPage page(AgentMetrics());
  page.Set(kSessions, parts.node.session_count());
  const ArenaUsage usage = parts.arena.usage();
  page.Set(kBudget, Value(usage.budget_bytes));
  page.Set(kReserved, Value(usage.reserved_bytes));
  page.Set(kSegments, Value(usage.segments));
  ShowSlots(parts.node, page);
  for (const auto& [job, bytes] : usage.of_jobs) page.Set(kJobArena, Value(bytes), {job});
  const std::vector<StoredShard> stored = parts.volume.List();
  std::map<std::string, uint64_t> on_disk;
  for (const StoredShard& shard : stored) on_disk[shard.identity.job] += shard.image_bytes;
  for (const auto& [job, bytes] : on_disk) page.Set(kJobDisk, Value(bytes), {job});
  if (parts.job_arena_limit != 0) page.Set(kJobArenaLimit, Value(parts.job_arena_limit));
  if (parts.job_disk_limit != 0) page.Set(kJobDiskLimit, Value(parts.job_disk_limit));
  page.Set(kDiskShards, Value(stored.size()));
  page.Set(kDiskFree, Value(parts.volume.FreeBytes()));
  const Scrubber::Counts scrub = parts.node.scrub_counts();
  page.Set(kScrubPasses, Value(scrub.passes));
  page.Set(kScrubBytes, Value(scrub.bytes));
  page.Set(kScrubDamaged, Value(scrub.damaged));
  page.Set(kPeerReceived, Value(parts.peer_received_bytes.load()));
  if (parts.peers != nullptr) Show(*parts.peers, page);
  if (parts.workers != nullptr) Show(*parts.workers, page);
  Show(parts.telemetry, page);
  for (const auto& [error, count] : parts.gpus.counts()) {
    const auto& [device, xid] = error;
    page.Set(kGpuErrors, Value(count),
             {device == kGpuUnknown ? "unknown" : std::to_string(device), std::to_string(xid)});
  }
  return page;
}

}  // namespace holdfast::agent
