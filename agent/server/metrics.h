#pragma once

#include <atomic>

#include "agent/arena/arena.h"
#include "agent/peers/tcp_server.h"
#include "agent/pipeline/node.h"
#include "agent/server/telemetry_sender.h"
#include "agent/telemetry/gpu_watch.h"
#include "agent/workers/manager.h"
#include "coordinator/metrics/metrics_page.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

/// All that an agent shows.
coord::MetricSpecs AgentMetrics();

/// What there is to look at; all of it thread-safe.
struct AgentParts {
  Node& node;
  Arena& arena;
  const Volume& volume;
  const TelemetrySender& telemetry;
  const GpuWatch& gpus;
  const std::atomic<uint64_t>& peer_received_bytes;
  const TcpPeerServer* peers = nullptr;  // null: it serves none
  WorkerManager* workers = nullptr;      // null: it launches none
};

/// The metrics' values now. Threads: any.
coord::MetricsPage CollectMetrics(const AgentParts& parts);

}  // namespace holdfast::agent
