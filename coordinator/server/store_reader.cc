#include "coordinator/server/store_reader.h"

#include "coordinator/etcd/etcd_store.h"
#include "coordinator/etcd/url.h"
#include "coordinator/store/backup.h"

namespace holdfast::coord {

Result<std::vector<KeyValue>> ReadStore(const CoordinatorConfig& config) {
  if (config.store == kEmbeddedStore) return ReadRecords(config.data_dir + "/metadata");
  HOLDFAST_ASSIGN_OR_RETURN(const EtcdUrl url, ParseEtcdUrl(config.store));
  HOLDFAST_ASSIGN_OR_RETURN(auto client, EtcdClient::Make(url.members, config.etcd_tls));
  EtcdStoreOptions options;
  options.prefix = url.PrefixOf(config.cluster);
  const auto store = EtcdStore::OpenReadOnly(*client, options);
  return ReadRecords(*store);
}

}  // namespace holdfast::coord
