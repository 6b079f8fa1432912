#include "coordinator/etcd/etcd_store.h"

#include <fmt/format.h>

#include <map>
#include <thread>

#include "base/clock.h"
#include "base/random.h"

namespace holdfast::coord {
namespace {
/// Records of one answer: 64 of the largest fit into a control message.
constexpr int64_t kPageKeys = 64;
/// etcd refuses more than 128 operations (--max-txn-ops) at one level of a transaction. A
/// transaction in a transaction may use what the outer one leaves.
constexpr size_t kGroupOps = 60;
constexpr size_t kOpsMax = kGroupOps * kGroupOps;
constexpr auto kRetryPause = std::chrono::milliseconds(20);
constexpr int kRangeTries = 5;

/// Returns the first key after all keys with this prefix.
std::string EndOf(std::string prefix) {
  ++prefix.back();  // all prefixes end with a character below 0xff
  return prefix;
}

etcd::Compare ValueIs(const std::string& key, const std::optional<std::string>& value) {
  etcd::Compare compare;
  compare.set_key(key);
  if (value) {
    compare.set_target(etcd::Compare::VALUE);
    compare.set_value(*value);
  } else {
    compare.set_target(etcd::Compare::CREATE);
    compare.set_create_revision(0);
  }
  return compare;
}

void AddRead(const std::string& key, etcd::RequestOp* op) {
  op->mutable_request_range()->set_key(key);
}

/// Returns the key of a read in the answer of a transaction; nullptr if the key is absent.
const etcd::KeyValue* FoundIn(const etcd::TxnResponse& reply, int index) {
  if (index >= reply.responses_size()) return nullptr;
  const etcd::RangeResponse& range = reply.responses(index).response_range();
  return range.kvs_size() == 0 ? nullptr : &range.kvs(0);
}
}  // namespace

EtcdStore::EtcdStore(EtcdClient& client, EtcdStoreOptions options, std::shared_ptr<LeaderTerm> term)
    : client_(client),
      options_(std::move(options)),
      term_(std::move(term)),
      records_(options_.prefix + std::string(kEtcdRecords)),
      leader_key_(options_.prefix + std::string(kEtcdLeader)),
      last_key_(options_.prefix + std::string(kEtcdLast)),
      id_(RandomHex(8)) {}

Result<std::unique_ptr<EtcdStore>> EtcdStore::Open(EtcdClient& client, EtcdStoreOptions options,
                                                   std::shared_ptr<LeaderTerm> term) {
  std::unique_ptr<EtcdStore> store(new EtcdStore(client, std::move(options), std::move(term)));
  etcd::RangeRequest request;
  request.set_key(store->last_key_);
  HOLDFAST_ASSIGN_OR_RETURN(const etcd::RangeResponse response, store->Read(request));
  if (response.kvs_size() != 0) store->last_ = response.kvs(0).value();
  return store;
}

std::unique_ptr<EtcdStore> EtcdStore::OpenReadOnly(EtcdClient& client, EtcdStoreOptions options) {
  return std::unique_ptr<EtcdStore>(new EtcdStore(client, std::move(options), nullptr));
}

Status EtcdStore::Ended() const {
  return FencedError("this coordinator's lease in etcd has ended; another one may lead");
}

Result<etcd::RangeResponse> EtcdStore::Read(const etcd::RangeRequest& request) {
  const auto until = SinceBoot() + options_.patience;
  for (;;) {
    if (!Held()) return Fail(Ended());
    auto response = client_.Range(request, options_.try_timeout);
    if (response) revision_ = std::max(revision_, response->header().revision());
    if (response || response.error().code() != ErrorCode::kUnavailable || SinceBoot() >= until) {
      return response;
    }
    std::this_thread::sleep_for(kRetryPause);
  }
}

Result<std::optional<std::string>> EtcdStore::Get(std::string_view key) {
  etcd::RangeRequest request;
  request.set_key(records_ + std::string(key));
  HOLDFAST_ASSIGN_OR_RETURN(etcd::RangeResponse response, Read(request));
  if (response.kvs_size() == 0) return std::optional<std::string>();
  return std::optional<std::string>(std::move(*response.mutable_kvs(0)->mutable_value()));
}

Result<std::vector<KeyValue>> EtcdStore::Range(std::string_view prefix) {
  const std::string first = records_ + std::string(prefix);
  for (int tries = 1;; ++tries) {
    std::vector<KeyValue> found;
    etcd::RangeRequest request;
    request.set_key(first);
    request.set_range_end(EndOf(first));
    request.set_limit(kPageKeys);
    Status status;
    for (bool more = true; more;) {
      auto page = Read(request);
      if (!page) {
        status = page.error();
        break;
      }
      for (etcd::KeyValue& kv : *page->mutable_kvs()) {
        found.push_back({kv.key().substr(records_.size()), std::move(*kv.mutable_value())});
      }
      more = page->more() && page->kvs_size() != 0;
      if (!more) break;
      // All pages show the same revision.
      if (request.revision() == 0) request.set_revision(page->header().revision());
      request.set_key(records_ + found.back().key + '\0');
    }
    // The revision of the first page was compacted while later ones were read: read all again.
    if (status.code() == ErrorCode::kAborted && tries < kRangeTries) continue;
    HOLDFAST_RETURN_IF_ERROR(std::move(status));
    return found;
  }
}

Result<etcd::TxnRequest> EtcdStore::Build(std::span<const Compare> compares,
                                          std::span<const Mutation> mutations,
                                          const std::string& number) {
  etcd::TxnRequest request;
  etcd::Compare* leads = request.add_compare();
  leads->set_key(leader_key_);
  leads->set_target(etcd::Compare::CREATE);
  leads->set_create_revision(term_->revision());
  *request.add_compare() = ValueIs(last_key_, last_);
  for (const Compare& compare : compares) {
    *request.add_compare() = ValueIs(records_ + compare.key, compare.value);
  }
  AddRead(leader_key_, request.add_failure());
  AddRead(last_key_, request.add_failure());
  etcd::PutRequest* mark = request.add_success()->mutable_request_put();
  mark->set_key(last_key_);
  mark->set_value(number);
  // etcd refuses two writes of one key in one transaction; the last one counts.
  std::map<std::string_view, const Mutation*> last_of;
  for (const Mutation& mutation : mutations) last_of[mutation.key] = &mutation;
  if (last_of.size() > kOpsMax) {
    return Fail(ResourceExhaustedError(
        fmt::format("{} records change at once; one transaction of etcd has at most {}",
                    last_of.size(), kOpsMax)));
  }
  etcd::TxnRequest* group = nullptr;
  for (const auto& [key, mutation] : last_of) {
    if (group == nullptr || static_cast<size_t>(group->success_size()) == kGroupOps) {
      group = request.add_success()->mutable_request_txn();
    }
    etcd::RequestOp* op = group->add_success();
    if (mutation->value) {
      op->mutable_request_put()->set_key(records_ + mutation->key);
      op->mutable_request_put()->set_value(*mutation->value);
    } else {
      op->mutable_request_delete_range()->set_key(records_ + mutation->key);
    }
  }
  const auto bytes = static_cast<int64_t>(request.ByteSizeLong());
  if (bytes > options_.request_bytes_max) {
    return Fail(ResourceExhaustedError(fmt::format(
        "a transaction of {} bytes is above the limit of {}: start etcd's members with a larger "
        "--max-request-bytes, and set etcd.request_bytes_max to the same",
        bytes, options_.request_bytes_max)));
  }
  return request;
}

Result<bool> EtcdStore::Commit(std::span<const Compare> compares,
                               std::span<const Mutation> mutations) {
  if (term_ == nullptr) return Fail(FailedPreconditionError("the store is open for reading only"));
  if (failed_) return Fail(IoErrorError("etcd: an earlier write failed; open the store again"));
  const std::string number = fmt::format("{}-{}", id_, ++commits_);
  HOLDFAST_ASSIGN_OR_RETURN(const etcd::TxnRequest request, Build(compares, mutations, number));
  auto applied = Send(request, number);
  failed_ = !applied;
  if (applied && *applied) last_ = number;
  return applied;
}

Result<bool> EtcdStore::Send(const etcd::TxnRequest& request, const std::string& number) {
  const auto until = SinceBoot() + options_.patience;
  for (;;) {
    // A write that is sent before the lease ends and is applied after it fails in the compare.
    if (!Held()) return Fail(Ended());
    auto reply = client_.Txn(request, options_.try_timeout);
    if (reply) {
      revision_ = std::max(revision_, reply->header().revision());
      if (reply->succeeded()) return true;
      const etcd::KeyValue* leader = FoundIn(*reply, 0);
      const etcd::KeyValue* last = FoundIn(*reply, 1);
      // An earlier try was applied, although its answer was lost.
      if (last != nullptr && last->value() == number) return true;
      if (leader == nullptr || leader->create_revision() != term_->revision()) {
        term_->End();
        return Fail(Ended());
      }
      const bool moved = last == nullptr ? last_.has_value() : last->value() != last_;
      if (moved) return Fail(FencedError("another writer has changed the records in etcd"));
      return false;
    }
    if (reply.error().code() != ErrorCode::kUnavailable || SinceBoot() >= until) {
      return Fail(reply.error());
    }
    std::this_thread::sleep_for(kRetryPause);
  }
}

}  // namespace holdfast::coord
