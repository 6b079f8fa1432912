#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "agent/parity/row_exchange.h"
#include "agent/peers/transport.h"
#include "storage/base/mutex.h"

namespace holdfast::agent {

struct RankPipeline;

/// What this node serves to its peers: shards while they are being saved and after, their seals,
/// rows of parity that it encodes, segments that it decodes. Sealed bytes are checked against their
/// seal before they leave. Requests of older incarnations are refused. Thread-safe.
class NodePeerSource final : public PeerSource {
 public:
  using FindRank = std::function<std::shared_ptr<RankPipeline>(const std::string& job, Rank rank)>;

  /// `transport` reaches the peers that a decode needs and outlives this.
  NodePeerSource(std::string node, FindRank find_rank, PeerTransport& transport)
      : node_(std::move(node)), find_rank_(std::move(find_rank)), transport_(transport) {}

  Result<std::unique_ptr<PeerReader>> Open(const PeerRequest& request) override;
  /// The job's current incarnation, from the coordinator.
  void SetIncarnation(const std::string& job, Incarnation incarnation);
  RowExchange& rows() { return rows_; }

 private:
  const std::string node_;
  const FindRank find_rank_;
  PeerTransport& transport_;
  RowExchange rows_;
  Mutex mutex_;
  std::map<std::string, Incarnation> incarnations_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
