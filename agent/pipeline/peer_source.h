#pragma once

#include <map>
#include <memory>
#include <string>

#include "agent/parity/row_exchange.h"
#include "agent/peers/transport.h"
#include "agent/pipeline/damage_tracker.h"
#include "agent/pipeline/local_shards.h"
#include "agent/pipeline/node_indexes.h"
#include "agent/pipeline/rank_registry.h"
#include "base/mutex.h"

namespace holdfast::agent {

/// Serves this node's data to its peers: shards while they are being saved and afterwards, from
/// memory or else from disk; seals; parity rows that the node encodes; segments that the node
/// decodes; indexes of versions. Sealed bytes are checked against their seal before they are sent,
/// and damage is reported. Requests of older incarnations are refused. Thread-safe.
class NodePeerSource final : public PeerSource {
 public:
  /// `transport` connects to the peers that a decode needs. All arguments outlive the source.
  NodePeerSource(std::string node, RankRegistry& ranks, const LocalShards& shards,
                 DamageTracker& damage, PeerTransport& transport, Clock& clock)
      : node_(std::move(node)),
        ranks_(ranks),
        shards_(shards),
        damage_(damage),
        transport_(transport),
        clock_(clock),
        indexes_(shards, damage) {}

  Result<std::unique_ptr<PeerReader>> Open(const PeerRequest& request) override;
  /// Sets the job's current incarnation, as the coordinator reports it.
  void SetIncarnation(const std::string& job, Incarnation incarnation);
  void Forget(const std::string& job);
  RowExchange& rows() { return rows_; }
  NodeIndexes& indexes() { return indexes_; }

 private:
  Result<std::unique_ptr<PeerReader>> OpenShard(const PeerRequest& request);

  const std::string node_;
  RankRegistry& ranks_;
  const LocalShards& shards_;
  DamageTracker& damage_;
  PeerTransport& transport_;
  Clock& clock_;
  RowExchange rows_;
  NodeIndexes indexes_;
  Mutex mutex_;
  std::map<std::string, Incarnation> incarnations_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
