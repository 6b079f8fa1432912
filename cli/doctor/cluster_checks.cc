#include "cli/doctor/cluster_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "agent/peers/tcp_transport.h"
#include "base/endpoint.h"
#include "cli/core/interrupt.h"
#include "cli/core/parallel.h"
#include "cli/core/text.h"

namespace holdfast::cli {
namespace {

using agent::PeerRequest;
using agent::PeerRequestKind;

constexpr std::chrono::seconds kConnectTime(3);
constexpr std::chrono::milliseconds kReadTime(500);
constexpr size_t kThreads = 32;
constexpr size_t kMeasuredMax = 8;
constexpr size_t kNamedMax = 10;
constexpr int64_t kSkewBad = 60'000'000'000;
constexpr double kPeerRateGood = 100e6;

PeerRequest ProbeOf(uint64_t bytes) {
  PeerRequest request;
  request.kind = PeerRequestKind::kProbe;
  request.job = "probe";
  request.version.incarnation = Incarnation{1};
  request.incarnation = Incarnation{1};
  request.bytes = bytes;
  return request;
}

/// An agent that does not have probes has read the request, so it was reached.
bool Answered(const Status& status) {
  return status.ok() || status.code() == ErrorCode::kInvalidArgument;
}

/// Reads for kReadTime. Returns bytes per second; nothing when the peer has no probes.
Result<std::optional<double>> Measure(agent::PeerTransport& transport, const std::string& address,
                                      const Clock& clock) {
  auto stream =
      transport.Open(address, ProbeOf(agent::kPeerProbeBytesMax), clock.Now() + kConnectTime);
  if (!stream && Answered(stream.error())) return std::optional<double>();
  if (!stream) return Fail(stream.error());
  std::vector<std::byte> unit(agent::kPeerUnitBytes);
  const auto begin = clock.Now();
  uint64_t bytes = 0;
  while (clock.Now() - begin < kReadTime) {
    HOLDFAST_ASSIGN_OR_RETURN(const size_t got, (*stream)->Read(unit, begin + kConnectTime));
    if (got == 0) break;
    bytes += got;
  }
  const double seconds = std::chrono::duration<double>(clock.Now() - begin).count();
  return std::optional<double>(static_cast<double>(bytes) / std::max(seconds, 1e-9));
}

std::string PeerRemedy(const Status& status) {
  switch (status.code()) {
    case ErrorCode::kPermissionDenied:
      return "give all nodes the same peers.secret_file and certificates of one authority";
    case ErrorCode::kResourceExhausted:
      return "raise peers.connections_max of that node";
    default:
      return "open its peers port in the firewalls between the nodes, and set peers.advertise of "
             "that node to an address that this one reaches";
  }
}

/// Returns whether the address has a meaning only on its own machine, as the default has.
bool IsLocal(const std::string& address) {
  const auto endpoint = ParseEndpoint(address);
  return endpoint && endpoint->kind == Endpoint::Kind::kTcp && endpoint->IsLocal();
}

struct Peer {
  std::string node;
  std::string address;
  Status status;
};

std::vector<Peer> OtherNodes(const std::string& own, const coordinator::GetStatusReply& status) {
  std::vector<Peer> peers;
  for (const coordinator::NodeStatus& node : status.nodes()) {
    if (!node.alive() || node.node() == own || node.peer_address().empty()) continue;
    peers.push_back({node.node(), node.peer_address(), Status::Ok()});
  }
  return peers;
}

Finding RateOf(agent::PeerTransport& transport, const std::vector<Peer>& reached,
               const Clock& clock) {
  Finding finding{"peers' rate", Readiness::kOk, "", ""};
  double least = 0;
  std::string slowest;
  size_t measured = 0;
  const size_t step = std::max<size_t>(1, reached.size() / kMeasuredMax);
  for (size_t i = 0; i < reached.size() && measured < kMeasuredMax; i += step) {
    if (Interrupt::Check() != Status::Ok()) break;
    const auto rate = Measure(transport, reached[i].address, clock);
    if (!rate) {
      return {"peers' rate", Readiness::kWarn,
              fmt::format("{}: {}", Printable(reached[i].node), Printable(rate.error().message())),
              PeerRemedy(rate.error())};
    }
    if (!*rate) continue;
    if (measured++ == 0 || **rate < least) {
      least = **rate;
      slowest = reached[i].node;
    }
  }
  if (measured == 0) {
    finding.readiness = Readiness::kSkipped;
    finding.what =
        reached.empty() ? "no peer answers" : "the other agents are older, without a probe";
    return finding;
  }
  finding.what = fmt::format("{} read from, the slowest ({}) at {:.2f} GB/s",
                             Count(measured, "node"), Printable(slowest), least / 1e9);
  if (least < kPeerRateGood) {
    finding.readiness = Readiness::kWarn;
    finding.remedy =
        "check the link (ethtool), the network that peers.advertise selects, and "
        "peers.rate_bytes_per_s of that node";
  }
  return finding;
}

}  // namespace

std::optional<ClusterView> CheckCoordinator(const agent::AgentConfig& config,
                                            const LimitedProcess& process,
                                            CoordinatorClient& client, const Clock& clock,
                                            Findings* findings) {
  Finding finding{"coordinator", Readiness::kOk, "", ""};
  const auto begin = clock.Now();
  auto reply = client.GetStatus("");
  const auto took = clock.Now() - begin;
  if (!reply) {
    finding.readiness = Readiness::kFail;
    // Without the client's hint, which names options that have no effect here.
    const std::string& message = reply.error().message();
    finding.what = Printable(message.substr(0, message.find("; is holdfast-coordinator running")));
    finding.remedy =
        "start holdfast-coordinator, set `coordinator` of the agent's configuration to its "
        "address, and open that port in the firewalls";
    findings->push_back(finding);
    return std::nullopt;
  }
  ClusterView view{*std::move(reply), {}};
  view.skew = ClockSkew::OfCall(clock, begin, view.status.wall_nanos());
  const auto up = std::count_if(view.status.nodes().begin(), view.status.nodes().end(),
                                [](const auto& node) { return node.alive(); });
  finding.what = fmt::format("{} answers in {:.1f} ms, {} of {} nodes up", config.coordinator,
                             static_cast<double>(took.count()) / 1e6, up, view.status.nodes_size());
  if (view.status.cluster() != config.cluster) {
    finding.readiness = Readiness::kFail;
    finding.what =
        fmt::format("{} has cluster '{}', but this node is configured for '{}'", config.coordinator,
                    Printable(view.status.cluster()), config.cluster);
    finding.remedy = "correct `cluster` or `coordinator` of the agent's configuration";
  }
  findings->push_back(finding);
  for (const coordinator::NodeStatus& node : view.status.nodes()) {
    if (node.node() != config.node || !node.alive() || process.is_agent()) continue;
    findings->push_back({"node name", Readiness::kFail,
                         fmt::format("an agent called '{}' is attached already, and none runs here "
                                     "in {}",
                                     config.node, config.run_dir),
                         "give each node its own name (`node`); in a container, use the agent's "
                         "configuration with --config"});
  }
  return view;
}

Finding CheckClock(const ClusterView& view) {
  if (view.status.wall_nanos() == 0) {
    return {"clock", Readiness::kSkipped, "the coordinator is older and does not send its time",
            ""};
  }
  Finding finding{"clock", Readiness::kOk,
                  fmt::format("{:.3f} s {} the coordinator's (± {:.3f} s)",
                              static_cast<double>(std::abs(view.skew.nanos)) / 1e9,
                              view.skew.nanos < 0 ? "behind" : "ahead of",
                              static_cast<double>(view.skew.uncertainty_nanos) / 1e9),
                  ""};
  if (view.skew.least_nanos() <= kClockSkewMaxNanos) return finding;
  finding.readiness = view.skew.least_nanos() > kSkewBad ? Readiness::kFail : Readiness::kWarn;
  finding.remedy =
      "start chrony or systemd-timesyncd on both machines; `chronyc tracking` shows "
      "the offset";
  return finding;
}

Findings CheckPeers(const agent::AgentConfig& config, const coordinator::GetStatusReply& status,
                    const Clock& clock) {
  std::vector<Peer> peers = OtherNodes(config.node, status);
  if (peers.empty()) return {{"peers", Readiness::kSkipped, "no other node is up", ""}};
  auto transport = agent::MakeTcpTransport(
      config.peers.TransportOptions(config.cluster, config.node,
                                    {config.tls.ca, config.tls.cert, config.tls.key}),
      clock);
  if (!transport) {
    const bool denied = transport.error().code() == ErrorCode::kPermissionDenied;
    return {{"peers", denied ? Readiness::kUnknown : Readiness::kFail, transport.error().message(),
             denied ? "run this command as root or as the agent's user"
                    : "correct the section [peers] of the agent's configuration"}};
  }
  ParallelFor(peers.size(), kThreads, [&](size_t i) {
    auto stream = (*transport)->Open(peers[i].address, ProbeOf(1), clock.Now() + kConnectTime);
    if (!stream && !Answered(stream.error())) peers[i].status = stream.error();
    return Interrupt::Check() == Status::Ok();
  });
  Findings findings;
  std::vector<Peer> reached;
  std::vector<Peer> lost;
  for (Peer& peer : peers) (peer.status.ok() ? reached : lost).push_back(std::move(peer));
  Finding all{"peers", lost.empty() ? Readiness::kOk : Readiness::kFail,
              fmt::format("{} of {} answer", reached.size(), Count(peers.size(), "other node")),
              lost.empty() ? "" : "see the nodes below"};
  findings.push_back(std::move(all));
  for (size_t i = 0; i < std::min(lost.size(), kNamedMax); ++i) {
    Finding finding{"peer " + Printable(lost[i].node), Readiness::kFail,
                    Printable(lost[i].status.message()), PeerRemedy(lost[i].status)};
    if (IsLocal(lost[i].address)) {
      finding.remedy = fmt::format(
          "set peers.listen of that node to an address of its network; {} "
          "is reached only from the node itself",
          Printable(lost[i].address));
    }
    findings.push_back(std::move(finding));
  }
  findings.push_back(RateOf(**transport, reached, clock));
  return findings;
}

}  // namespace holdfast::cli
