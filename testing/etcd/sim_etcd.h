#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "coordinator/etcd/etcd.grpc.pb.h"

namespace holdfast::local {

/// What becomes of one transaction.
enum class TxnFault {
  kNone,
  kAnswerLost,    // applied; the caller gets "request timed out"
  kRequestLost,   // never applied; the caller gets "request timed out"
  kAppliedLate,   // the caller gets "request timed out"; applied at the start of a later call
  kLateUnled,     // as kAppliedLate, and all leases end before that
  kLeaderChange,  // not applied; the caller gets "leader changed"
  kNoLeader,      // not applied; the caller gets "no leader"
};

/// The records of a simulated etcd at one revision.
using SimRecords = std::map<std::string, etcdserverpb::KeyValue>;

/// A simulated etcd with one member: the calls that Holdfast uses, over real gRPC, with the faults
/// that etcd's documentation names. Threads: any.
class SimEtcd final {
 public:
  SimEtcd();
  ~SimEtcd();

  /// Returns "etcd://127.0.0.1:…".
  std::string url() const { return "etcd://" + address_; }
  const std::string& address() const { return address_; }

  /// The next transactions that write records get these faults, in order.
  void Fail(std::deque<TxnFault> faults);
  /// While set, writes fail: "database space exceeded".
  void SetQuotaAlarm(bool on);
  /// While set, no call is answered: the calls end at their deadlines.
  void SetHang(bool on);
  /// Reads of revisions before the newest fail from now on, and so do watches from them.
  void Compact();
  /// Compacts once, after `reads` more reads.
  void CompactAfter(int reads);
  /// Cancels all watches, and `further` watches to come.
  void CancelWatches(int further);
  /// Ends the calls of the next `count` watches with CANCELLED, as members do when a call's time is
  /// over.
  void EndWatches(int count);
  /// Ends all leases now.
  void EndLeases();
  int64_t revision();
  int watches_cancelled();

 private:
  class KvService;
  class LeaseService;
  class WatchService;
  using Lock = std::unique_lock<std::mutex>;

  // All of these need the lock.
  grpc::Status Serve(Lock& lock);
  grpc::Status Range(const etcdserverpb::RangeRequest& request, etcdserverpb::RangeResponse* out);
  grpc::Status Txn(const etcdserverpb::TxnRequest& request, etcdserverpb::TxnResponse* out);
  /// Runs the transaction on `records`; returns whether it changed any.
  bool Run(const etcdserverpb::TxnRequest& request, SimRecords* records,
           etcdserverpb::TxnResponse* out);
  bool Apply(const etcdserverpb::RequestOp& op, SimRecords* records, etcdserverpb::ResponseOp* out);
  void Commit(SimRecords records);
  void ApplyLate();
  void ExpireLeases();

  struct LeaseState {
    std::chrono::seconds ttl;
    std::chrono::steady_clock::time_point until;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, SimRecords> history_;  // by revision; the last one is the newest
  int64_t compacted_ = 0;
  int compact_after_ = -1;
  std::map<int64_t, LeaseState> leases_;
  int64_t next_lease_ = 100;
  std::deque<TxnFault> faults_;
  std::deque<etcdserverpb::TxnRequest> late_;
  bool alarm_ = false;
  bool hang_ = false;
  bool stopping_ = false;
  int cancel_further_ = 0;
  int end_watches_ = 0;
  int cancelled_ = 0;
  uint64_t cancel_round_ = 0;

  std::unique_ptr<KvService> kv_;
  std::unique_ptr<LeaseService> lease_;
  std::unique_ptr<WatchService> watch_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace holdfast::local
