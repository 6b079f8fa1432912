#pragma once

#include <atomic>

#include "agent/arena/arena.h"
#include "agent/peers/tcp_server.h"
#include "agent/pipeline/node.h"
#include "agent/server/telemetry_sender.h"
#include "agent/telemetry/gpu_watch.h"
#include "agent/workers/manager.h"
#include "base/metrics/metrics_page.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

/// Returns the specifications of all metrics of an agent.
coord::MetricSpecs AgentMetrics();

/// The parts of an agent that metrics read. All of them are thread-safe.
struct AgentParts {
  Node& node;
  Arena& arena;
  const Volume& volume;
  const TelemetrySender& telemetry;
  const GpuWatch& gpus;
  const std::atomic<uint64_t>& peer_received_bytes;
  const TcpPeerServer* peers = nullptr;  // null: the agent serves no peers
  WorkerManager* workers = nullptr;      // null: the agent launches no workers
  uint64_t job_arena_limit = 0;          // 0: none
  uint64_t job_disk_limit = 0;           // 0: none
};

/// Returns the current values of the metrics. Callable from any thread.
coord::MetricsPage CollectMetrics(const AgentParts& parts);

}  // namespace holdfast::agent
