#include "tests/coordinator/etcd/store_kinds.h"

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "coordinator/etcd/session.h"
#include "coordinator/etcd/url.h"
#include "coordinator/store/memory_store.h"
#include "coordinator/store/rocks_store.h"
#include "testing/etcd/members.h"
#include "testing/etcd/sim_etcd.h"

namespace holdfast::coord {
namespace {
constexpr auto kLeadTimeout = std::chrono::seconds(20);

class RocksPlace : public StorePlace {
 public:
  explicit RocksPlace(std::string dir) : dir_(std::move(dir)) {}
  Result<std::unique_ptr<MetaStore>> Open() override {
    HOLDFAST_ASSIGN_OR_RETURN(auto store, RocksStore::Open(dir_));
    return std::unique_ptr<MetaStore>(std::move(store));
  }

 private:
  const std::string dir_;
};

class MemoryPlace : public StorePlace {
 public:
  Result<std::unique_ptr<MetaStore>> Open() override {
    return std::unique_ptr<MetaStore>(std::make_unique<MemoryStore>(data_));
  }

 private:
  MemoryStoreData data_;
};

/// An etcd, and the session of one coordinator that leads.
class EtcdPlace : public StorePlace {
 public:
  Result<std::unique_ptr<MetaStore>> Open() override {
    session_.reset();  // the store of the last session is gone
    HOLDFAST_ASSIGN_OR_RETURN(const EtcdUrl url, ParseEtcdUrl(Url()));
    HOLDFAST_ASSIGN_OR_RETURN(auto client, EtcdClient::Make(url.members, {}));
    EtcdSessionOptions options;
    options.address = "127.0.0.1:1";
    options.store.prefix = url.PrefixOf("contract");
    session_ = EtcdSession::Start(std::move(client), options);
    const auto until = Clock::Real().Now() + kLeadTimeout;
    for (;;) {
      auto store = session_->OpenStore();
      if (store || Clock::Real().Now() >= until) return store;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

 protected:
  virtual std::string Url() = 0;

 private:
  std::unique_ptr<EtcdSession> session_;
};

class SimPlace : public EtcdPlace {
  std::string Url() override { return sim_.url(); }
  local::SimEtcd sim_;
};

class RealPlace : public EtcdPlace {
 public:
  explicit RealPlace(const std::string& dir) : members_(dir) { started_ = members_.Start(); }
  Result<std::unique_ptr<MetaStore>> Open() override {
    HOLDFAST_RETURN_IF_ERROR(Status(started_));
    return EtcdPlace::Open();
  }

 private:
  std::string Url() override { return members_.url(); }
  local::EtcdMembers members_;
  Status started_;
};
}  // namespace

std::unique_ptr<StorePlace> MakeStorePlace(const std::string& kind, const std::string& dir) {
  if (kind == "rocksdb") return std::make_unique<RocksPlace>(dir + "/a/b");
  if (kind == "memory") return std::make_unique<MemoryPlace>();
  if (kind == "simulated_etcd") return std::make_unique<SimPlace>();
  if (!local::HasEtcd()) return nullptr;
  return std::make_unique<RealPlace>(dir + "/etcd");
}

}  // namespace holdfast::coord
