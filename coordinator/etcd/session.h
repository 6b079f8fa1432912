#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "coordinator/etcd/client.h"
#include "coordinator/etcd/etcd_store.h"
#include "coordinator/etcd/term.h"

namespace holdfast::coord {

struct EtcdSessionOptions {
  EtcdStoreOptions store;
  std::string address;  // where agents reach this coordinator; other coordinators redirect to it
  std::chrono::seconds lease{3};
};

/// A coordinator's part in the election of the leader, with one thread. The leader holds a lease in
/// etcd, and renews it three times per lease; the others watch the leader's key and take it when it
/// is free. A leader that could not renew its lease in time stops leading by its own clock, before
/// the lease ends in etcd. Threads: any.
class EtcdSession {
 public:
  static std::unique_ptr<EtcdSession> Start(std::unique_ptr<EtcdClient> client,
                                            EtcdSessionOptions options);
  ~EtcdSession();
  /// Gives the lease up, so that another coordinator leads at once. The client stays usable.
  void Stop();

  /// Opens the store. Unavailable: this coordinator does not lead; the message names the leader.
  Result<std::unique_ptr<MetaStore>> OpenStore();
  /// Whether this coordinator leads now.
  bool leads();
  /// Returns the address of another coordinator that leads, as last read; empty: none is known.
  std::string leader();
  /// Returns why this coordinator does not lead; empty while it does.
  std::string why();

 private:
  EtcdSession(std::unique_ptr<EtcdClient> client, EtcdSessionOptions options);
  void Run();
  /// Takes the leader's key if it is absent, and follows the key otherwise.
  Status Campaign();
  Status Follow(const etcd::KeyValue& leader, int64_t revision);
  Status TakeLead();
  /// Renews the lease until it is lost.
  void Lead();
  bool Pause(std::chrono::milliseconds duration);
  bool stopping();
  void Note(Status why, std::string leader);
  std::chrono::milliseconds CallTimeout() const;

  const std::unique_ptr<EtcdClient> client_;
  const EtcdSessionOptions options_;
  const std::string key_;
  int64_t lease_ = 0;  // granted and not revoked; only the thread uses it
  /// Until then the leader that was read last may lead, even if calls to etcd fail. Only the thread
  /// uses it.
  std::chrono::nanoseconds leader_until_{0};

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::shared_ptr<LeaderTerm> term_ HOLDFAST_GUARDED_BY(mutex_);  // null: does not lead
  std::string leader_ HOLDFAST_GUARDED_BY(mutex_);
  Status why_ HOLDFAST_GUARDED_BY(mutex_);  // why it does not lead

  std::thread thread_;
};

}  // namespace holdfast::coord
