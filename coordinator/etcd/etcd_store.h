#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/etcd/client.h"
#include "coordinator/etcd/term.h"
#include "coordinator/store/meta_store.h"

namespace holdfast::coord {

/// Keys beneath the prefix of a cluster. Records are beneath kEtcdRecords, so no record collides
/// with the other two.
inline constexpr std::string_view kEtcdRecords = "data/";
inline constexpr std::string_view kEtcdLeader = "leader";
inline constexpr std::string_view kEtcdLast = "last";

/// etcd's default limit of a request (--max-request-bytes), less what the frame needs.
inline constexpr int64_t kEtcdRequestBytes = 3 << 19;

struct EtcdStoreOptions {
  std::string prefix;  // ends with '/'
  int64_t request_bytes_max = kEtcdRequestBytes;
  /// Longest time of one try of a call.
  std::chrono::milliseconds try_timeout{1000};
  /// A call is repeated this long while the lease lasts.
  std::chrono::milliseconds patience{6000};
};

/// MetaStore in an etcd, for the coordinator that leads. One Commit is one transaction, so one
/// revision. Each transaction compares the leader's key, and writes a unique number to the key
/// `last`. When the outcome of a transaction is unknown, the store sends the same transaction
/// again: it finds its own number if the first one was applied, and it cannot be applied twice,
/// since each also compares the number of the transaction before.
class EtcdStore : public MetaStore {
 public:
  /// `client` outlives the store. Unavailable: etcd does not answer. Fenced: the term has ended.
  static Result<std::unique_ptr<EtcdStore>> Open(EtcdClient& client, EtcdStoreOptions options,
                                                 std::shared_ptr<LeaderTerm> term);
  /// Opens the store for reading only, while any coordinator leads. Commit() fails.
  static std::unique_ptr<EtcdStore> OpenReadOnly(EtcdClient& client, EtcdStoreOptions options);

  Result<std::optional<std::string>> Get(std::string_view key) override;
  Result<std::vector<KeyValue>> Range(std::string_view prefix) override;
  Result<bool> Commit(std::span<const Compare> compares,
                      std::span<const Mutation> mutations) override;
  std::function<bool()> HeldCheck() const override {
    return [term = term_] { return term == nullptr || term->Valid(); };
  }
  /// Returns the newest revision that an answer of etcd had.
  int64_t revision() const { return revision_; }

 private:
  EtcdStore(EtcdClient& client, EtcdStoreOptions options, std::shared_ptr<LeaderTerm> term);
  Result<etcd::RangeResponse> Read(const etcd::RangeRequest& request);
  /// Makes the transaction; ResourceExhausted if etcd would refuse its size.
  Result<etcd::TxnRequest> Build(std::span<const Compare> compares,
                                 std::span<const Mutation> mutations, const std::string& number);
  /// Sends the transaction until its outcome is known. Any error leaves it unknown.
  Result<bool> Send(const etcd::TxnRequest& request, const std::string& number);
  Status Ended() const;

  EtcdClient& client_;
  const EtcdStoreOptions options_;
  const std::shared_ptr<LeaderTerm> term_;  // null: read-only
  const std::string records_, leader_key_, last_key_;
  const std::string id_;  // of this object, so that its numbers are unique
  uint64_t commits_ = 0;
  std::optional<std::string> last_;  // number of the last applied transaction of the cluster
  int64_t revision_ = 0;
  bool failed_ = false;
};

}  // namespace holdfast::coord
