#include "faults/injector/config.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>

#include "base/endpoint.h"
#include "base/ids.h"
#include "base/log_level.h"

namespace holdfast::faults {
namespace {
std::string HostName() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "";
  return name.data();
}

Status CheckAbsolute(const char* key, const std::string& path) {
  if (path.starts_with('/')) return Status::Ok();
  return InvalidArgumentError(fmt::format("{} '{}' is not an absolute path", key, path));
}
}  // namespace

InjectorConfig::InjectorConfig() : node(HostName()) {}

void InjectorConfig::Bind(ConfigSchema& schema) {
  schema.Add("cluster", &cluster, "Name of the cluster; requests for another are refused.");
  schema.Add("node", &node,
             "Name of this node, as in its agent's configuration; empty: no agent runs here.");
  schema.Add("listen", &listen,
             "Where `holdfast drill` connects: HOST:PORT or unix:/path. Beyond loopback only with "
             "[tls]. The command expects port 7079 of the agent's host.");
  schema.Add("insecure_loopback", &tls.insecure_loopback,
             "Permit TCP over loopback without [tls]. Every user of this machine can reach such an "
             "address, and listen at it while this process does not run.");
  schema.Add("run_dir", &run_dir, "Folder of the orders in force, for this user only.");
  schema.Add("agent_run_dir", &agent_run_dir, "run_dir of this node's agent.");
  schema.Add("data_dirs", &data_dirs, "data_dirs of this node's agent.");
  schema.Add(
      "coordinator", &coordinator,
      "Address of the coordinator. Where this is an address of this machine, drills can kill "
      "the coordinator. With [tls], the coordinator sends the revoked names.");
  schema.Add("log_level", &log_level, "debug, info, warn or error.");
  schema.Add("drills.enabled", &drills_enabled,
             "Inject the failures of `holdfast drill`: any client that reaches `listen` can then "
             "end trainers, servers and their memory.");
  schema.Add(
      "drills.restart_servers", &restart_servers,
      "Start killed servers again, as they were started; false: their service manager does.");
  access.Bind(schema, /*coordinator=*/false);
  schema.Add("tls.ca", &tls.ca, "PEM file of the authority that both sides trust.");
  schema.Add("tls.cert", &tls.cert,
             "PEM file of this injector's certificate: that of this node's agent.");
  schema.Add("tls.key", &tls.key, "PEM file of that certificate's private key.");
  access.BindNames(schema);
}

Status InjectorConfig::Check() const {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("cluster", cluster));
  if (!node.empty()) HOLDFAST_RETURN_IF_ERROR(ValidateName("node", node));
  HOLDFAST_ASSIGN_OR_RETURN(const Endpoint at, ParseEndpoint(listen));
  auto credentials = coord::MakeServerCredentials(at, tls, "listen");
  if (!credentials) return credentials.error();
  auto to = ParseEndpointList(coordinator);
  if (!to) return to.error().WithContext("coordinator");
  HOLDFAST_RETURN_IF_ERROR(CheckAbsolute("run_dir", run_dir));
  HOLDFAST_RETURN_IF_ERROR(CheckAbsolute("agent_run_dir", agent_run_dir));
  for (const std::string& dir : data_dirs)
    HOLDFAST_RETURN_IF_ERROR(CheckAbsolute("data_dirs", dir));
  auto level = ParseLogLevel(log_level);
  return level ? Status::Ok() : level.error();
}

}  // namespace holdfast::faults
