#include "agent/workers/worker.h"

#include <fmt/format.h>
#include <unistd.h>

#include <map>

namespace holdfast::agent {

std::vector<std::string> EnvironmentOf(const SetWorkers& wanted, const WorkerUser& user,
                                       uint32_t local_rank, const std::string& agent_socket,
                                       const std::string& error_file) {
  std::map<std::string, std::string> variables;
  const auto add = [&variables](const std::string& text) {
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  };
  if (user.uid == ::geteuid()) {
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) add(*entry);
  } else {
    variables["PATH"] = "/usr/local/bin:/usr/bin:/bin";
    variables["HOME"] = user.home;
    variables["SHELL"] = user.shell;
    variables["USER"] = variables["LOGNAME"] = user.name;
  }
  // As in torchrun: OpenMP threads of several ranks on one machine would compete for the cores.
  if (wanted.ranks > 1) variables.try_emplace("OMP_NUM_THREADS", "1");
  for (const std::string& text : wanted.environment) add(text);

  const std::string rank = std::to_string(wanted.first_rank.value + local_rank);
  const std::string world = std::to_string(wanted.world);
  variables["RANK"] = rank;
  variables["LOCAL_RANK"] = std::to_string(local_rank);
  variables["GROUP_RANK"] = std::to_string(wanted.node_rank);
  variables["ROLE_RANK"] = rank;
  variables["ROLE_NAME"] = "default";
  variables["WORLD_SIZE"] = world;
  variables["LOCAL_WORLD_SIZE"] = std::to_string(wanted.ranks);
  variables["GROUP_WORLD_SIZE"] = std::to_string(wanted.nodes);
  variables["ROLE_WORLD_SIZE"] = world;
  variables["MASTER_ADDR"] = wanted.master_address;
  variables["MASTER_PORT"] = std::to_string(wanted.master_port);
  variables["TORCHELASTIC_RESTART_COUNT"] = std::to_string(wanted.restarts);
  variables["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(wanted.restarts_max);
  variables["TORCHELASTIC_RUN_ID"] = wanted.run_id;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";  // rank 0 serves the store itself
  variables["TORCHELASTIC_ERROR_FILE"] = error_file;
  variables["HOLDFAST_JOB"] = wanted.job;
  variables["HOLDFAST_RUN_ID"] = wanted.run_id;
  variables["HOLDFAST_SOCKET"] = agent_socket;

  std::vector<std::string> environment;
  environment.reserve(variables.size());
  for (const auto& [name, value] : variables) {
    environment.push_back(fmt::format("{}={}", name, value));
  }
  return environment;
}

}  // namespace holdfast::agent
