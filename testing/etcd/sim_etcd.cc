#include "testing/etcd/sim_etcd.h"

#include <grpc/support/time.h>

#include <algorithm>
#include <utility>

namespace holdfast::local {

namespace pb = ::etcdserverpb;

namespace {
constexpr auto kPoll = std::chrono::milliseconds(10);
constexpr int64_t kOpsMax = 128;
constexpr int64_t kStopMs = 200;

grpc::Status Unavailable(const char* text) { return {grpc::StatusCode::UNAVAILABLE, text}; }

bool InRange(const std::string& key, const std::string& first, const std::string& end) {
  return end.empty() ? key == first : key >= first && key < end;
}

bool Holds(const pb::Compare& compare, const SimRecords& records) {
  auto found = records.find(compare.key());
  if (compare.target() == pb::Compare::VALUE) {
    return found != records.end() && found->second.value() == compare.value();
  }
  const int64_t made = found == records.end() ? 0 : found->second.create_revision();
  return made == compare.create_revision();
}

/// etcd's check of the number of operations, at all levels.
bool TooMany(const pb::TxnRequest& request, int64_t left) {
  const int64_t ops =
      std::max({request.compare_size(), request.success_size(), request.failure_size()});
  if (ops > left) return true;
  for (const pb::RequestOp& op : request.success()) {
    if (op.has_request_txn() && TooMany(op.request_txn(), left - ops)) return true;
  }
  return false;
}
}  // namespace

class SimEtcd::KvService final : public pb::KV::Service {
 public:
  explicit KvService(SimEtcd& sim) : sim_(sim) {}
  grpc::Status Range(grpc::ServerContext*, const pb::RangeRequest* request,
                     pb::RangeResponse* response) override {
    Lock lock(sim_.mutex_);
    if (grpc::Status status = sim_.Serve(lock); !status.ok()) return status;
    return sim_.Range(*request, response);
  }
  grpc::Status Txn(grpc::ServerContext*, const pb::TxnRequest* request,
                   pb::TxnResponse* response) override {
    Lock lock(sim_.mutex_);
    if (grpc::Status status = sim_.Serve(lock); !status.ok()) return status;
    return sim_.Txn(*request, response);
  }

 private:
  SimEtcd& sim_;
};

class SimEtcd::LeaseService final : public pb::Lease::Service {
 public:
  explicit LeaseService(SimEtcd& sim) : sim_(sim) {}
  grpc::Status LeaseGrant(grpc::ServerContext*, const pb::LeaseGrantRequest* request,
                          pb::LeaseGrantResponse* response) override {
    Lock lock(sim_.mutex_);
    if (grpc::Status status = sim_.Serve(lock); !status.ok()) return status;
    const std::chrono::seconds ttl(request->ttl());
    const int64_t id = ++sim_.next_lease_;
    sim_.leases_[id] = {ttl, std::chrono::steady_clock::now() + ttl};
    response->set_id(id);
    response->set_ttl(request->ttl());
    return grpc::Status::OK;
  }
  grpc::Status LeaseRevoke(grpc::ServerContext*, const pb::LeaseRevokeRequest* request,
                           pb::LeaseRevokeResponse*) override {
    Lock lock(sim_.mutex_);
    if (grpc::Status status = sim_.Serve(lock); !status.ok()) return status;
    auto lease = sim_.leases_.find(request->id());
    if (lease == sim_.leases_.end()) {
      return {grpc::StatusCode::NOT_FOUND, "etcdserver: requested lease not found"};
    }
    lease->second.until = {};
    sim_.ExpireLeases();
    return grpc::Status::OK;
  }
  grpc::Status LeaseKeepAlive(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<pb::LeaseKeepAliveResponse, pb::LeaseKeepAliveRequest>* stream)
      override {
    pb::LeaseKeepAliveRequest request;
    while (stream->Read(&request)) {
      pb::LeaseKeepAliveResponse response;
      response.set_id(request.id());
      {
        Lock lock(sim_.mutex_);
        if (grpc::Status status = sim_.Serve(lock); !status.ok()) return status;
        auto lease = sim_.leases_.find(request.id());
        if (lease != sim_.leases_.end()) {
          lease->second.until = std::chrono::steady_clock::now() + lease->second.ttl;
          response.set_ttl(lease->second.ttl.count());
        }
      }
      stream->Write(response);
    }
    return grpc::Status::OK;
  }

 private:
  SimEtcd& sim_;
};

class SimEtcd::WatchService final : public pb::Watch::Service {
 public:
  explicit WatchService(SimEtcd& sim) : sim_(sim) {}
  grpc::Status Watch(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<pb::WatchResponse, pb::WatchRequest>* stream) override {
    pb::WatchRequest request;
    if (!stream->Read(&request)) return grpc::Status::OK;
    const std::string& key = request.create_request().key();
    int64_t next = request.create_request().start_revision();
    pb::WatchResponse created;
    created.set_created(true);
    stream->Write(created);
    Lock lock(sim_.mutex_);
    const uint64_t round = sim_.cancel_round_;
    while (!context->IsCancelled() && !sim_.stopping_) {
      sim_.ExpireLeases();
      if (sim_.end_watches_ > 0) {
        --sim_.end_watches_;
        ++sim_.cancelled_;
        return {grpc::StatusCode::CANCELLED, ""};
      }
      pb::WatchResponse response;
      if (sim_.cancel_round_ != round || sim_.cancel_further_ > 0) {
        if (sim_.cancel_round_ == round) --sim_.cancel_further_;
        ++sim_.cancelled_;
        response.set_canceled(true);
        response.set_cancel_reason("etcdserver: no leader");
      } else if (next <= sim_.compacted_) {
        response.set_canceled(true);
        response.set_compact_revision(sim_.compacted_);
      } else {
        Collect(key, &next, &response);
      }
      if (response.canceled() || response.events_size() > 0) {
        lock.unlock();
        stream->Write(response);
        if (response.canceled()) return grpc::Status::OK;
        lock.lock();
        continue;
      }
      sim_.changed_.wait_for(lock, kPoll);
    }
    return grpc::Status::OK;
  }

 private:
  /// Adds the events of the key from the revision *next on.
  void Collect(const std::string& key, int64_t* next, pb::WatchResponse* response) {
    for (; *next <= sim_.history_.rbegin()->first; ++*next) {
      auto after = sim_.history_.find(*next);
      auto before = sim_.history_.find(*next - 1);
      if (after == sim_.history_.end() || before == sim_.history_.end()) continue;
      const bool was = before->second.count(key) != 0;
      const bool is = after->second.count(key) != 0;
      if (was && !is) response->add_events()->set_type(pb::Event::DELETE);
      if (is && after->second.at(key).mod_revision() == *next) {
        response->add_events()->set_type(pb::Event::PUT);
      }
    }
  }

  SimEtcd& sim_;
};

SimEtcd::SimEtcd()
    : kv_(std::make_unique<KvService>(*this)),
      lease_(std::make_unique<LeaseService>(*this)),
      watch_(std::make_unique<WatchService>(*this)) {
  history_[1] = {};
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(kv_.get());
  builder.RegisterService(lease_.get());
  builder.RegisterService(watch_.get());
  server_ = builder.BuildAndStart();
  address_ = "127.0.0.1:" + std::to_string(port);
}

SimEtcd::~SimEtcd() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    hang_ = false;
    changed_.notify_all();
  }
  server_->Shutdown(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(kStopMs, GPR_TIMESPAN)));
}

/// Runs at the start of each call: hangs, applies what is late, and ends leases.
grpc::Status SimEtcd::Serve(Lock& lock) {
  while (hang_) changed_.wait(lock);
  if (stopping_) return Unavailable("etcdserver: server stopped");
  ApplyLate();
  ExpireLeases();
  return grpc::Status::OK;
}

void SimEtcd::ApplyLate() {
  for (const pb::TxnRequest& request : std::exchange(late_, {})) {
    SimRecords records = history_.rbegin()->second;
    pb::TxnResponse ignored;
    if (Run(request, &records, &ignored)) Commit(std::move(records));
  }
}

void SimEtcd::Commit(SimRecords records) {
  const int64_t revision = history_.rbegin()->first + 1;
  history_[revision] = std::move(records);
  changed_.notify_all();
}

void SimEtcd::ExpireLeases() {
  const auto now = std::chrono::steady_clock::now();
  for (auto lease = leases_.begin(); lease != leases_.end();) {
    if (lease->second.until > now) {
      ++lease;
      continue;
    }
    SimRecords records = history_.rbegin()->second;
    const size_t erased =
        std::erase_if(records, [&](const auto& one) { return one.second.lease() == lease->first; });
    if (erased > 0) Commit(std::move(records));
    lease = leases_.erase(lease);
  }
}

grpc::Status SimEtcd::Range(const pb::RangeRequest& request, pb::RangeResponse* out) {
  if (compact_after_ >= 0 && compact_after_-- == 0) {
    Commit(SimRecords(history_.rbegin()->second));  // another client's write
    compacted_ = history_.rbegin()->first;
  }
  const int64_t newest = history_.rbegin()->first;
  const int64_t revision = request.revision() == 0 ? newest : request.revision();
  if (revision < compacted_) {
    return {grpc::StatusCode::OUT_OF_RANGE,
            "etcdserver: mvcc: required revision has been compacted"};
  }
  for (const auto& [key, kv] : history_.at(revision)) {
    if (!InRange(key, request.key(), request.range_end())) continue;
    if (request.limit() > 0 && out->kvs_size() == request.limit()) {
      out->set_more(true);
      break;
    }
    *out->add_kvs() = kv;
  }
  out->mutable_header()->set_revision(newest);
  return grpc::Status::OK;
}

bool SimEtcd::Apply(const pb::RequestOp& op, SimRecords* records, pb::ResponseOp* out) {
  const int64_t revision = history_.rbegin()->first + 1;
  if (op.has_request_range()) {
    pb::RangeResponse* range = out->mutable_response_range();
    auto found = records->find(op.request_range().key());
    if (found != records->end()) *range->add_kvs() = found->second;
    return false;
  }
  if (op.has_request_put()) {
    pb::KeyValue& kv = (*records)[op.request_put().key()];
    if (kv.create_revision() == 0) kv.set_create_revision(revision);
    kv.set_key(op.request_put().key());
    kv.set_mod_revision(revision);
    kv.set_version(kv.version() + 1);
    kv.set_value(op.request_put().value());
    kv.set_lease(op.request_put().lease());
    out->mutable_response_put();
    return true;
  }
  if (op.has_request_delete_range()) {
    const size_t erased = records->erase(op.request_delete_range().key());
    out->mutable_response_delete_range()->set_deleted(static_cast<int64_t>(erased));
    return erased > 0;
  }
  return Run(op.request_txn(), records, out->mutable_response_txn());
}

bool SimEtcd::Run(const pb::TxnRequest& request, SimRecords* records, pb::TxnResponse* out) {
  bool holds = true;
  for (const pb::Compare& compare : request.compare()) holds = holds && Holds(compare, *records);
  out->set_succeeded(holds);
  bool changed = false;
  for (const pb::RequestOp& op : holds ? request.success() : request.failure()) {
    changed = Apply(op, records, out->add_responses()) || changed;
  }
  return changed;
}

grpc::Status SimEtcd::Txn(const pb::TxnRequest& request, pb::TxnResponse* out) {
  if (TooMany(request, kOpsMax)) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "etcdserver: too many operations in txn request"};
  }
  if (alarm_) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded"};
  }
  TxnFault fault = TxnFault::kNone;
  if (request.failure_size() > 0 && !faults_.empty()) {  // one that writes records
    fault = faults_.front();
    faults_.pop_front();
  }
  if (fault == TxnFault::kLeaderChange) return Unavailable("etcdserver: leader changed");
  if (fault == TxnFault::kNoLeader) return Unavailable("etcdserver: no leader");
  const bool late = fault == TxnFault::kAppliedLate || fault == TxnFault::kLateUnled;
  if (late) late_.push_back(request);
  if (fault == TxnFault::kLateUnled) {
    for (auto& [id, lease] : leases_) lease.until = {};
    ExpireLeases();
  }
  if (!late && fault != TxnFault::kRequestLost) {
    SimRecords records = history_.rbegin()->second;
    if (Run(request, &records, out)) Commit(std::move(records));
  }
  if (fault != TxnFault::kNone) return Unavailable("etcdserver: request timed out");
  out->mutable_header()->set_revision(history_.rbegin()->first);
  return grpc::Status::OK;
}

void SimEtcd::Fail(std::deque<TxnFault> faults) {
  Lock lock(mutex_);
  faults_ = std::move(faults);
}
void SimEtcd::SetQuotaAlarm(bool on) {
  Lock lock(mutex_);
  alarm_ = on;
}
void SimEtcd::SetHang(bool on) {
  Lock lock(mutex_);
  hang_ = on;
  changed_.notify_all();
}
void SimEtcd::Compact() {
  Lock lock(mutex_);
  compacted_ = history_.rbegin()->first;
}
void SimEtcd::CompactAfter(int reads) {
  Lock lock(mutex_);
  compact_after_ = reads;
}
void SimEtcd::CancelWatches(int further) {
  Lock lock(mutex_);
  ++cancel_round_;
  cancel_further_ = further;
  changed_.notify_all();
}
void SimEtcd::EndWatches(int count) {
  Lock lock(mutex_);
  end_watches_ = count;
  changed_.notify_all();
}
void SimEtcd::EndLeases() {
  Lock lock(mutex_);
  for (auto& [id, lease] : leases_) lease.until = {};
  ExpireLeases();
}
int64_t SimEtcd::revision() {
  Lock lock(mutex_);
  return history_.rbegin()->first;
}
int SimEtcd::watches_cancelled() {
  Lock lock(mutex_);
  return cancelled_;
}

}  // namespace holdfast::local
