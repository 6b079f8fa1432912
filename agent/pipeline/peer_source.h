#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "agent/parity/row_exchange.h"
#include "agent/peers/transport.h"
#include "storage/base/mutex.h"
#include "storage/volume/volume.h"

namespace holdfast::agent {

struct RankPipeline;

/// Serves this node's data to its peers: shards while they are being saved and afterwards, from
/// memory or else from disk; seals; parity rows that the node encodes; segments that it decodes.
/// Sealed bytes are checked against their seal before they are sent, and damage is reported.
/// Requests of older incarnations are refused. Thread-safe.
class NodePeerSource final : public PeerSource {
 public:
  /// Returns the rank's memory that has the version; without one, the rank's current memory.
  using FindRank = std::function<std::shared_ptr<RankPipeline>(const ShardKey& key)>;

  /// Called, from any thread, for a replica that does not match its seal.
  using OnDamage = std::function<void(const ShardKey& key, Tier tier, const Status& how)>;

  /// `transport` connects to the peers that a decode needs. `transport` and `volume` outlive the
  /// source.
  NodePeerSource(std::string node, FindRank find_rank, OnDamage on_damage, const Volume& volume,
                 PeerTransport& transport)
      : node_(std::move(node)),
        find_rank_(std::move(find_rank)),
        on_damage_(std::move(on_damage)),
        volume_(volume),
        transport_(transport) {}

  Result<std::unique_ptr<PeerReader>> Open(const PeerRequest& request) override;
  /// Sets the job's current incarnation, as the coordinator reports it.
  void SetIncarnation(const std::string& job, Incarnation incarnation);
  void Forget(const std::string& job);
  RowExchange& rows() { return rows_; }

 private:
  Result<std::unique_ptr<PeerReader>> OpenShard(const PeerRequest& request);

  const std::string node_;
  const FindRank find_rank_;
  const OnDamage on_damage_;
  const Volume& volume_;
  PeerTransport& transport_;
  RowExchange rows_;
  Mutex mutex_;
  std::map<std::string, Incarnation> incarnations_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::agent
