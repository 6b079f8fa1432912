#include "coordinator/server/config.h"

namespace holdfast::coord {

ConfigSchema BindConfig(CoordinatorConfig& config) {
  ConfigSchema schema("holdfast-coordinator: decides which versions are complete");
  schema.Add("cluster", &config.cluster,
             "Name of the cluster. Agents of another cluster, and a data_dir of another, are "
             "refused.");
  schema.Add("listen", &config.listen,
             "Where agents and operators connect: HOST:PORT or unix:/path. Port 0 takes a free one "
             "and writes it to data_dir/endpoint. Beyond loopback only with [tls].");
  schema.Add("data_dir", &config.data_dir,
             "Directory of the metadata store. Losing it loses every version.");
  schema.Add("node_lease_ms", &config.node_lease_ms,
             "A node without a word for this long counts as lost.", 200, 600'000);
  schema.Add("log_level", &config.log_level, "debug, info, warn or error.");
  schema.Add("retention.keep_last", &config.keep_last, "Newest versions kept on disk.", 1,
             1'000'000);
  schema.Add("retention.keep_every", &config.keep_every,
             "Also keep versions whose step is a multiple of this; 0: none.", 0, 1'000'000'000'000);
  schema.Add("tls.ca", &config.tls.ca, "PEM file of the authority that signs every certificate.");
  schema.Add("tls.cert", &config.tls.cert, "PEM file of this coordinator's certificate.");
  schema.Add("tls.key", &config.tls.key, "PEM file of its private key.");
  return schema;
}

}  // namespace holdfast::coord
