#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "base/mutex.h"
#include "base/status.h"
#include "coordinator/api/channel.h"
#include "coordinator/etcd/etcd.grpc.pb.h"

namespace holdfast::coord {

namespace etcd = ::etcdserverpb;

/// Calls to the members of one etcd. A call goes to one member and is never repeated here; after a
/// failure the next call goes to the next member. All reads are linearizable.
///
/// Errors: Unavailable: the outcome is not known, a write may be applied, now or later. Every other
/// code means that nothing was applied: OutOfSpace (quota), ResourceExhausted (request too large),
/// Aborted (revision compacted), NotFound (lease ended), PermissionDenied, FailedPrecondition.
/// Threads: any.
class EtcdClient {
 public:
  /// InvalidArgument: a member on another machine without TLS files. Connects at the first call.
  static Result<std::unique_ptr<EtcdClient>> Make(const std::vector<Endpoint>& members,
                                                  const TlsFiles& tls);

  using Timeout = std::chrono::milliseconds;
  Result<etcd::RangeResponse> Range(const etcd::RangeRequest& request, Timeout timeout);
  Result<etcd::TxnResponse> Txn(const etcd::TxnRequest& request, Timeout timeout);
  Result<etcd::LeaseGrantResponse> Grant(const etcd::LeaseGrantRequest& request, Timeout timeout);
  Status Revoke(int64_t lease, Timeout timeout);
  /// Renews the lease. NotFound: it has ended.
  Status KeepAlive(int64_t lease, Timeout timeout);
  /// Waits until the key is erased by a revision from `revision` on. Ok: it was. DeadlineExceeded:
  /// not within the timeout. Aborted: the revision is compacted, or etcd cancelled the watch; read
  /// the key again.
  Status AwaitErased(const std::string& key, int64_t revision, Timeout timeout);

  /// Ends all calls now, and every further call at once.
  void Shutdown();

 private:
  struct Member {
    std::string name;
    std::unique_ptr<etcd::KV::Stub> kv;
    std::unique_ptr<etcd::Lease::Stub> lease;
    std::unique_ptr<etcd::Watch::Stub> watch;
  };
  class Call;

  EtcdClient() = default;
  Member& current() { return members_[next_.load() % members_.size()]; }
  /// Converts the end of a call. After a failure of the transport, later calls use another member.
  Status Ended(const grpc::Status& status, const Member& member);

  std::vector<Member> members_;
  std::atomic<size_t> next_{0};
  Mutex mutex_;
  bool stopped_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> calls_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast::coord
