#include "coordinator/etcd/session.h"

#include <fmt/format.h>
#include <time.h>

#include "base/log.h"

namespace holdfast::coord {
namespace {
using std::chrono::milliseconds;

/// A term ends this much of the lease early: clocks differ a little in speed.
constexpr int kEarlyPart = 20;
constexpr int kRenewalsPerLease = 3;
constexpr milliseconds kCampaignPause(100);
/// The leader's key is read again after this time, although the watch reports its end: a watch at a
/// member that is cut off reports nothing.
constexpr milliseconds kWatchTime(1000);
}  // namespace

std::chrono::nanoseconds SinceBoot() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

EtcdSession::EtcdSession(std::unique_ptr<EtcdClient> client, EtcdSessionOptions options)
    : client_(std::move(client)),
      options_(std::move(options)),
      key_(options_.store.prefix + std::string(kEtcdLeader)),
      why_(UnavailableError("etcd has not answered yet")) {}

std::unique_ptr<EtcdSession> EtcdSession::Start(std::unique_ptr<EtcdClient> client,
                                                EtcdSessionOptions options) {
  std::unique_ptr<EtcdSession> session(new EtcdSession(std::move(client), std::move(options)));
  session->thread_ = std::thread([raw = session.get()] { raw->Run(); });
  return session;
}

EtcdSession::~EtcdSession() {
  Stop();
  client_->Shutdown();
}

void EtcdSession::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (term_ != nullptr) term_->End();
    changed_.NotifyAll();
  }
  // A call in progress ends within its timeout. The thread then revokes the lease.
  if (thread_.joinable()) thread_.join();
}

bool EtcdSession::leads() {
  MutexLock lock(mutex_);
  return term_ != nullptr && term_->Valid();
}

std::string EtcdSession::leader() {
  MutexLock lock(mutex_);
  return leader_;
}

std::string EtcdSession::why() {
  MutexLock lock(mutex_);
  return term_ == nullptr ? why_.message() : "";
}

Result<std::unique_ptr<MetaStore>> EtcdSession::OpenStore() {
  std::shared_ptr<LeaderTerm> term;
  {
    MutexLock lock(mutex_);
    if (term_ == nullptr) return Fail(why_);
    term = term_;
  }
  HOLDFAST_ASSIGN_OR_RETURN(auto store, EtcdStore::Open(*client_, options_.store, std::move(term)));
  return std::unique_ptr<MetaStore>(std::move(store));
}

bool EtcdSession::stopping() {
  MutexLock lock(mutex_);
  return stopping_;
}

bool EtcdSession::Pause(milliseconds duration) {
  MutexLock lock(mutex_);
  if (!stopping_) changed_.WaitFor(mutex_, duration);
  return !stopping_;
}

milliseconds EtcdSession::CallTimeout() const {
  return std::chrono::duration_cast<milliseconds>(options_.lease) / kRenewalsPerLease;
}

void EtcdSession::Note(Status why, std::string leader) {
  MutexLock lock(mutex_);
  why_ = std::move(why);
  leader_ = std::move(leader);
}

void EtcdSession::Run() {
  while (!stopping()) {
    const Status status = Campaign();
    if (status.ok()) {
      Lead();
      continue;
    }
    if (status.code() == ErrorCode::kDeadlineExceeded) continue;  // nothing changed: read again
    if (status.code() != ErrorCode::kAborted && SinceBoot() >= leader_until_) {
      Note(UnavailableError("no leader is known: " + status.message()), "");
    }
    Pause(kCampaignPause);
  }
  if (lease_ != 0) (void)client_->Revoke(lease_, CallTimeout());
}

Status EtcdSession::Campaign() {
  etcd::RangeRequest read;
  read.set_key(key_);
  HOLDFAST_ASSIGN_OR_RETURN(const etcd::RangeResponse found, client_->Range(read, CallTimeout()));
  if (found.kvs_size() == 0) {
    leader_until_ = {};
    return TakeLead();
  }
  // A key with this object's own lease was made by a try whose answer was lost. Its term is not
  // known, so the lease is given up.
  if (lease_ != 0 && found.kvs(0).lease() == lease_) {
    HOLDFAST_RETURN_IF_ERROR(client_->Revoke(std::exchange(lease_, 0), CallTimeout()));
    return AbortedError("the lead was taken without an answer");
  }
  return Follow(found.kvs(0), found.header().revision());
}

Status EtcdSession::Follow(const etcd::KeyValue& leader, int64_t revision) {
  Note(
      UnavailableError(fmt::format("this coordinator stands by; the leader is {}", leader.value())),
      leader.value());
  leader_until_ = SinceBoot() + options_.lease;
  HOLDFAST_RETURN_IF_ERROR(client_->AwaitErased(key_, revision + 1, kWatchTime));
  Note(UnavailableError("the leader's lease has ended; another coordinator takes over"), "");
  leader_until_ = {};
  return AbortedError("the leader's key was removed");
}

Status EtcdSession::TakeLead() {
  if (lease_ != 0) {
    (void)client_->Revoke(std::exchange(lease_, 0), CallTimeout());
  }
  const auto sent = SinceBoot();
  etcd::LeaseGrantRequest grant;
  grant.set_ttl(options_.lease.count());
  HOLDFAST_ASSIGN_OR_RETURN(const etcd::LeaseGrantResponse granted,
                            client_->Grant(grant, CallTimeout()));
  lease_ = granted.id();
  etcd::TxnRequest take;
  etcd::Compare* absent = take.add_compare();
  absent->set_key(key_);
  absent->set_target(etcd::Compare::CREATE);
  absent->set_create_revision(0);
  etcd::PutRequest* put = take.add_success()->mutable_request_put();
  put->set_key(key_);
  put->set_value(options_.address);
  put->set_lease(lease_);
  HOLDFAST_ASSIGN_OR_RETURN(const etcd::TxnResponse taken, client_->Txn(take, CallTimeout()));
  if (!taken.succeeded()) return AbortedError("another coordinator was faster");
  const auto until = sent + options_.lease - options_.lease / kEarlyPart;
  MutexLock lock(mutex_);
  if (stopping_) return CancelledError("stopping");
  term_ = std::make_shared<LeaderTerm>(lease_, taken.header().revision(), until);
  leader_.clear();
  why_ = Status::Ok();
  Log(LogLevel::kInfo, "CoordinatorLeads",
      {Kv("address", options_.address), Kv("revision", taken.header().revision())});
  return Status::Ok();
}

void EtcdSession::Lead() {
  std::shared_ptr<LeaderTerm> term;
  {
    MutexLock lock(mutex_);
    term = term_;
  }
  Status status;
  milliseconds pause = CallTimeout();
  while (term->Valid() && Pause(pause)) {
    const auto sent = SinceBoot();
    status = client_->KeepAlive(term->lease(), CallTimeout());
    if (status.code() == ErrorCode::kNotFound) break;
    // A process that was stopped in between finds its term ended, and does not revive it: its lease
    // may have ended and the key may be another's.
    if (status.ok() && term->Valid()) {
      term->Extend(sent + options_.lease - options_.lease / kEarlyPart);
    }
    pause = status.ok() ? CallTimeout() : kCampaignPause;
  }
  term->End();
  MutexLock lock(mutex_);
  term_.reset();
  if (stopping_) return;
  why_ = UnavailableError("this coordinator has lost its lease" +
                          (status.ok() ? std::string() : ": " + status.message()));
  Log(LogLevel::kWarn, "LeaseLost", {Kv("why", why_.message())});
}

}  // namespace holdfast::coord
