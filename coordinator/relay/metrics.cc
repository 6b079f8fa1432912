#include "coordinator/relay/metrics.h"

namespace holdfast::coord::relay {
namespace {
using Kind = MetricKind;

constexpr MetricSpec kConnected{"holdfast_relay_connected", Kind::kGauge,
                                "1 while the relay has a session with the coordinator that leads."};
constexpr MetricSpec kAgents{"holdfast_relay_agents", Kind::kGauge,
                             "Agents attached through this relay."};
constexpr MetricSpec kPending{"holdfast_relay_pending_bytes", Kind::kGauge,
                              "Messages of agents that the coordinator has not taken. Above 256 "
                              "MiB, the relay refuses more."};
constexpr MetricSpec kSessions{"holdfast_relay_sessions_total", Kind::kCounter,
                               "Sessions opened with a coordinator."};
constexpr MetricSpec kMessages{"holdfast_relay_messages_total", Kind::kCounter,
                               "Messages of agents that the coordinator has taken."};
constexpr MetricSpec kBatches{"holdfast_relay_batches_total", Kind::kCounter,
                              "Batches of messages that the coordinator has taken."};
constexpr MetricSpec kRefused{"holdfast_relay_refused_messages_total", Kind::kCounter,
                              "Messages of agents refused: the relay had no session, the "
                              "coordinator was silent, or too much was pending. Agents repeat "
                              "them."};

constexpr const MetricSpec* kMetricSpecs[] = {
    &kConnected,           &kAgents,       &kPending, &kSessions, &kMessages, &kBatches, &kRefused,
    &kInvariantViolations, &kDroppedSeries};
}  // namespace

MetricSpecs RelayMetrics() { return kMetricSpecs; }

MetricsPage CollectMetrics(AgentService& agents, Upstream& upstream) {
  MetricsPage page(RelayMetrics());
  const Upstream::Counts counts = upstream.counts();
  page.Set(kConnected, counts.connected ? 1 : 0);
  page.Set(kAgents, static_cast<double>(agents.agents()));
  page.Set(kPending, static_cast<double>(counts.pending_bytes));
  page.Set(kSessions, static_cast<double>(counts.sessions));
  page.Set(kMessages, static_cast<double>(counts.messages));
  page.Set(kBatches, static_cast<double>(counts.batches));
  page.Set(kRefused, static_cast<double>(counts.refused));
  return page;
}

}  // namespace holdfast::coord::relay
