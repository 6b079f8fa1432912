#include "coordinator/server/config.h"

#include <fmt/format.h>

#include "base/endpoint.h"
#include "base/ids.h"
#include "base/log_level.h"
#include "coordinator/etcd/client.h"
#include "coordinator/etcd/url.h"
#include "coordinator/server/issuer.h"
#include "storage/erasure/coding_tables.h"

namespace holdfast::coord {

namespace {
void BindServer(CoordinatorConfig& config, ConfigSchema& schema) {
  schema.Add("cluster", &config.cluster,
             "Name of the cluster. Agents of another cluster, and a data_dir of another, are "
             "refused.");
  schema.Add("role", &config.role,
             "coordinator, or relay: a server between agents and coordinators that sends the "
             "messages of many agents as one. A relay stores nothing, and uses only cluster, "
             "listen, advertise, upstream, log_level, [access], [metrics] and [tls].");
  schema.Add("upstream", &config.upstream,
             "Of a relay: the addresses of all coordinators, as agents have them.");
  schema.Add("listen", &config.listen,
             "Where agents and operators connect: unix:/path or HOST:PORT. With port 0, the system "
             "chooses a free port, and the coordinator writes it to data_dir/endpoint. HOST:PORT "
             "only with [tls], or with insecure_loopback.");
  schema.Add("insecure_loopback", &config.tls.insecure_loopback,
             "Permit TCP over loopback without [tls]. Every user of this machine can reach such an "
             "address, and listen at it while this process does not run.");
  schema.Add("data_dir", &config.data_dir,
             "Directory of the embedded metadata store. Losing it loses every version.");
  schema.Add("store", &config.store,
             "Where the metadata is: embedded (a RocksDB in data_dir, one coordinator), or "
             "etcd://HOST:PORT,HOST:PORT,HOST:PORT, which any number of coordinators share: one "
             "leads, the others stand by.");
  schema.Add("advertise", &config.advertise,
             "With etcd, and of a relay: where agents and operators reach this process, as in "
             "their list of coordinators. Empty: listen.");
  schema.Add(
      "node_lease_ms", &config.node_lease_ms,
      "A node that sends no message for this long counts as lost. Up to a quarter more passes "
      "while a probe shows whether its machine or only its agent is silent.",
      200, 600'000);
  schema.Add("log_level", &config.log_level, "debug, info, warn or error.");
}

void BindEtcd(CoordinatorConfig& config, ConfigSchema& schema) {
  schema.Add("etcd.lease_s", &config.etcd_lease_s,
             "Seconds after which the coordinators replace a leader that does not answer. etcd "
             "needs more than one and a half of its election timeouts.",
             2, 60);
  schema.Add("etcd.request_bytes_max", &config.etcd_request_bytes_max,
             "Largest request that etcd's members accept: their --max-request-bytes.", 1 << 16,
             kControlMessageBytesMax);
  schema.Add("etcd.ca", &config.etcd_tls.ca,
             "PEM file of the CA of etcd's members. Beyond loopback, all three files are needed.");
  schema.Add("etcd.cert", &config.etcd_tls.cert,
             "PEM file of this coordinator's client certificate.");
  schema.Add("etcd.key", &config.etcd_tls.key, "PEM file of its private key.");
}

void BindJobs(CoordinatorConfig& config, ConfigSchema& schema) {
  schema.Add("retention.keep_last", &config.keep_last, "Newest versions kept on disk.", 1,
             1'000'000);
  schema.Add("retention.keep_every", &config.keep_every,
             "Also keep versions whose step is a multiple of this; 0: none.", 0, 1'000'000'000'000);
  schema.Add("remote.every", &config.remote_every,
             "Copy a version from disk to tier remote this many steps after the one before, where "
             "agents have remote.url. 0: as often as the tier keeps up.",
             0, 1'000'000'000'000);
  schema.Add("remote.interval_s", &config.remote_interval_s,
             "Least time from one version at tier remote to the next.", 0, 31'536'000);
  schema.Add("remote.keep_last", &config.remote_keep_last, "Newest versions kept at tier remote.",
             1, 1'000'000);
  schema.Add("remote.keep_every", &config.remote_keep_every,
             "Also keep versions at tier remote whose step is a multiple of this; 0: none.", 0,
             1'000'000'000'000);
  schema.Add("jobs.release_after_s", &config.release_after_s,
             "A job whose trainers all ended with a goodbye, or whose run ended, releases its "
             "memory this many seconds after its end, once its newest version is on disk with its "
             "parity. The next start restores from disk.",
             0, 31'536'000);
  schema.Add("jobs.release_dead_after_s", &config.release_dead_after_s,
             "The same for a job whose trainers ended without a goodbye: until then a restart "
             "finds its state in memory.",
             0, 31'536'000);
  schema.Add("jobs.forget_after_s", &config.forget_after_s,
             "A job without trainers for this many seconds is forgotten: all its versions and its "
             "name are removed. The time starts again with the coordinator. 0: never.",
             0, 315'360'000);
}

void BindPeers(CoordinatorConfig& config, ConfigSchema& schema) {
  schema.Add(
      "peers.enabled", &config.peers_enabled,
      "Nodes of a job keep parity for each other in memory, so that the loss of nodes loses no "
      "step. A change takes effect at the next start of a job.");
  schema.Add("peers.group_nodes", &config.peers_group_nodes,
             "Largest number of nodes in a parity group. Larger groups need less memory and "
             "survive fewer losses in total.",
             2, kCodeSegmentsMax);
  schema.Add("peers.parity", &config.peers_parity,
             "Nodes of a group that may be lost at once. A group of n nodes that survives the loss "
             "of m keeps m/(n - m) of a node's state as parity on each, twice: the committed and "
             "the next. 0: two for jobs of 8 nodes and more (with group_nodes 8 or more), else "
             "one. Groups of two or three nodes survive one.",
             0, kCodeParityMax);
  schema.Add("peers.domain_label", &config.peers_domain_label,
             "Label of the nodes that names their failure domain: members of a group come from "
             "different domains as far as possible. A node without the label is in a failure "
             "domain of one node.");
  schema.Add("peers.rehome_after_s", &config.peers_rehome_after_s,
             "A node that is lost for this long counts as lost for good: another node, of the "
             "failure domain that the group has least of, takes over its shards and its parity.",
             1, 31'536'000);
}

void BindRestart(CoordinatorConfig& config, ConfigSchema& schema) {
  schema.Add(
      "restart.command", &config.restart_command,
      "Run by /bin/sh when a job that torchrun, Slurm or Kubernetes launched must be started "
      "again; HOLDFAST_JOB, HOLDFAST_KIND, HOLDFAST_RANKS and HOLDFAST_NODES describe the fault.");
  schema.Add("restart.timeout_ms", &config.restart_timeout_ms,
             "A command that takes longer is killed and counts as failed.", 100, 86'400'000);
  schema.Add("restart.attempts", &config.restart_attempts,
             "Maximum runs of the command for one incident, until it ends with exit code 0. Pauses "
             "are 10 s, 20 s and so on, up to 5 minutes.",
             1, 1000);
  schema.Add("restart.cooldown_ms", &config.restart_cooldown_ms,
             "Minimum time between two runs of the command for the same job.", 0, 86'400'000);
}

void BindDetect(CoordinatorConfig& config, ConfigSchema& schema) {
  schema.Add("detect.action", &config.detect_action,
             "Action on a job that is slow or hangs while its processes run: off, alert (incidents "
             "only) or restart (also restart jobs whose hang lasts). `holdfast run "
             "--detect-action` sets it for one job.");
  schema.Add("detect.alert_after_ms", &config.detect_alert_after_ms,
             "An operation that does not complete for this long, and for ten times its usual "
             "longest duration, is shown as a suspicion: an incident without consequences.",
             1000, 86'400'000);
  schema.Add("detect.restart_stuck_after_ms", &config.detect_restart_stuck_after_ms,
             "A hang leads to a restart after this time if every rank waits in communication, or "
             "ranks call different operations: no progress is possible.",
             1000, 604'800'000);
  schema.Add("detect.restart_absent_after_ms", &config.detect_restart_absent_after_ms,
             "A hang leads to a restart after this time if ranks wait for others that are "
             "elsewhere, and may evaluate, read or compile. The default is NCCL's timeout. Either "
             "time must also exceed the longest pause after which the job continued.",
             1000, 604'800'000);
}
}  // namespace

ConfigSchema BindConfig(CoordinatorConfig& config) {
  ConfigSchema schema("holdfast-coordinator: decides which versions are complete");
  BindServer(config, schema);
  BindEtcd(config, schema);
  BindJobs(config, schema);
  BindPeers(config, schema);
  BindRestart(config, schema);
  BindDetect(config, schema);
  config.metrics.Bind(schema);
  config.ui.Bind(schema);
  config.access.Bind(schema, /*coordinator=*/true);
  schema.Add("access.run_as_users", &config.run_as_users,
             "Users that operators may start runs as, with `holdfast run --user`. Otherwise the "
             "workers of a run have the user who asks for it.");
  schema.Add("access.jobs_per_user", &config.jobs_per_user,
             "Largest number of jobs of one user. Root has no limit; 0: no user has one.", 0,
             1'000'000'000);
  schema.Add("tls.ca", &config.tls.ca, "PEM file of the authority that signs every certificate.");
  schema.Add("tls.cert", &config.tls.cert, "PEM file of this coordinator's certificate.");
  schema.Add("tls.key", &config.tls.key, "PEM file of its private key.");
  schema.Add("tls.renew", &config.tls_renew,
             "Of a relay: renew the certificate at the coordinator after two thirds of its time, "
             "and keep tls.ca as the coordinator has it. tls.cert and tls.key should be one file.");
  config.access.BindNames(schema);
  schema.Add("join.listen", &config.join_listen,
             "HOST:PORT where machines without a certificate join with a token of `holdfast token "
             "create`. Empty: nowhere. Needs [tls] and join.ca_key.");
  schema.Add(
      "join.coordinators", &config.join_coordinators,
      "Addresses of all coordinators, separated by commas, which `holdfast join` writes into "
      "the configuration of the machine. Empty: this coordinator's.");
  schema.Add("join.ca_key", &config.join_ca_key,
             "PEM file of the key of the authority in tls.ca, which signs certificates: "
             "`holdfast cluster init` makes both. Only the coordinator's user may read it.");
  schema.Add("join.certificate_s", &config.join_certificate_s,
             "Seconds for which a certificate is valid. Each is renewed after two thirds of them.",
             10, 31'536'000);
  return schema;
}

Result<DetectAction> ParseDetectAction(const std::string& text) {
  if (text == "off") return DetectAction::kOff;
  if (text == "alert") return DetectAction::kAlert;
  if (text == "restart") return DetectAction::kRestart;
  return Fail(InvalidArgumentError("detect.action '" + text + "': use off, alert or restart"));
}

namespace {
Status CheckJoin(const CoordinatorConfig& config) {
  if (config.join_listen.empty() && config.join_ca_key.empty()) return Status::Ok();
  if (!config.tls.configured()) return InvalidArgumentError("join needs [tls]");
  auto issuer = Issuer::Check({config.cluster, config.tls, config.join_ca_key, 0});
  if (!issuer.ok()) return issuer;
  if (config.join_listen.empty()) return Status::Ok();
  if (config.join_ca_key.empty()) return InvalidArgumentError("join.listen needs join.ca_key");
  auto listen = ParseEndpoint(config.join_listen);
  if (!listen) return listen.error().WithContext("join.listen");
  if (listen->kind != Endpoint::Kind::kTcp) {
    return InvalidArgumentError("join.listen: use HOST:PORT, which other machines reach");
  }
  if (config.join_coordinators.empty()) return Status::Ok();
  auto all = ParseEndpointList(config.join_coordinators);
  return all ? Status::Ok() : all.error().WithContext("join.coordinators");
}

Status CheckRole(const CoordinatorConfig& config) {
  if (config.role == kRelayRole) return relay::CheckRelay(RelayOptionsOf(config));
  if (config.role != kCoordinatorRole) {
    return InvalidArgumentError(
        fmt::format("role '{}': use {} or {}", config.role, kCoordinatorRole, kRelayRole));
  }
  if (config.tls_renew) {
    return InvalidArgumentError(
        "tls.renew is for relays only: a coordinator with join.ca_key renews its certificate "
        "itself");
  }
  if (config.upstream.empty()) return Status::Ok();
  return InvalidArgumentError("upstream is for relays only: set role = \"relay\", or remove it");
}

Status CheckStore(const CoordinatorConfig& config, const Endpoint& listen) {
  if (config.store == kEmbeddedStore) return Status::Ok();
  if (!IsEtcdUrl(config.store)) {
    return InvalidArgumentError(fmt::format(
        "store '{}': use embedded or etcd://HOST:PORT,HOST:PORT,HOST:PORT", config.store));
  }
  HOLDFAST_ASSIGN_OR_RETURN(const EtcdUrl url, ParseEtcdUrl(config.store));
  auto client = EtcdClient::Make(url.members, config.etcd_tls);
  if (!client) return client.error();
  if (!config.advertise.empty()) {
    auto address = ParseEndpoint(config.advertise);
    return address ? Status::Ok() : address.error().WithContext("advertise");
  }
  const bool everywhere = listen.host == "0.0.0.0" || listen.host == "::";
  if (listen.kind == Endpoint::Kind::kTcp && (everywhere || listen.port == 0)) {
    return InvalidArgumentError(
        fmt::format("listen '{}' is no address that agents can connect to; set advertise, which "
                    "the other coordinators redirect to",
                    config.listen));
  }
  return Status::Ok();
}
}  // namespace

relay::RelayOptions RelayOptionsOf(const CoordinatorConfig& config) {
  relay::RelayOptions options;
  options.cluster = config.cluster;
  options.listen = config.listen;
  options.advertise = config.advertise;
  for (const std::string& one : config.upstream) {
    options.upstream += (options.upstream.empty() ? "" : ",") + one;
  }
  options.tls = config.tls;
  options.tls_renew = config.tls_renew;
  options.access = config.access;
  options.metrics = config.metrics;
  return options;
}

Status CheckConfig(const CoordinatorConfig& config) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("cluster", config.cluster));
  HOLDFAST_ASSIGN_OR_RETURN(const Endpoint listen, ParseEndpoint(config.listen));
  auto credentials = MakeServerCredentials(listen, config.tls, "listen");
  if (!credentials) return credentials.error();
  HOLDFAST_RETURN_IF_ERROR(CheckRole(config));
  if (config.data_dir.empty() || config.data_dir.front() != '/') {
    return InvalidArgumentError(
        fmt::format("data_dir '{}' is not an absolute path", config.data_dir));
  }
  HOLDFAST_RETURN_IF_ERROR(CheckJoin(config));
  HOLDFAST_RETURN_IF_ERROR(CheckStore(config, listen));
  HOLDFAST_RETURN_IF_ERROR(CheckMetrics(config.metrics, {config.tls.cert, config.tls.key}));
  HOLDFAST_RETURN_IF_ERROR(ui::CheckUi(config.ui, {config.tls.cert, config.tls.key}));
  HOLDFAST_RETURN_IF_ERROR(ValidateName("peers.domain_label", config.peers_domain_label));
  if (config.peers_parity >= config.peers_group_nodes) {
    return InvalidArgumentError(
        fmt::format("peers.parity {} needs groups of at least {} nodes, and peers.group_nodes is "
                    "{}: a group does not survive the loss of all its nodes",
                    config.peers_parity, config.peers_parity + 1, config.peers_group_nodes));
  }
  auto action = ParseDetectAction(config.detect_action);
  if (!action) return action.error();
  auto level = ParseLogLevel(config.log_level);
  return level ? Status::Ok() : level.error();
}

}  // namespace holdfast::coord
