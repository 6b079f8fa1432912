#include "testing/cluster/cluster.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "agent/api/socket.h"
#include "base/process.h"

namespace holdfast::local {
namespace {
using std::chrono::milliseconds;
constexpr milliseconds kStartTimeout(20'000);

Status MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? ErrnoStatus(error.value(), "mkdir " + path) : Status::Ok();
}

std::vector<std::string> ServerCommand() {
  const char* words = std::getenv("HOLDFAST_SERVER_COMMAND");
  std::istringstream text(words == nullptr ? "" : words);
  return {std::istream_iterator<std::string>(text), std::istream_iterator<std::string>()};
}

/// Returns the path of a program in `folder`, or of the program that was built with this one.
std::string ProgramOf(const std::string& folder, const std::string& name) {
  return (folder.empty() ? BinaryDir() : folder) + "/" + name;
}

std::map<std::string, std::string> CrashEnv(const std::string& crash) {
  return {{"HOLDFAST_CRASH", crash}};
}
}  // namespace

Cluster::Cluster(ClusterOptions options) : options_(std::move(options)) {
  agents_.resize(options_.nodes);
  injectors_.resize(options_.nodes);
  coordinators_.resize(static_cast<size_t>(options_.coordinators));
  relays_.resize(static_cast<size_t>(options_.relays));
}

Cluster::~Cluster() { KillEverything(); }

std::string Cluster::NodeDir(int node) const { return root() + "/n" + std::to_string(node); }
std::string Cluster::RunDir(int node) const { return NodeDir(node) + "/run"; }

std::vector<std::string> Cluster::DataDirs(int node) const {
  if (auto it = options_.data_dir_of.find(node); it != options_.data_dir_of.end()) {
    return {it->second};
  }
  std::vector<std::string> dirs;
  for (int i = 0; i < options_.data_dirs; ++i) {
    dirs.push_back(NodeDir(node) + "/data" + std::to_string(i));
  }
  return dirs;
}

std::string Cluster::EndpointOf(int coordinator) const {
  if (!options_.endpoint.empty()) return options_.endpoint;
  const std::string number = coordinator == 0 ? "" : std::to_string(coordinator);
  return "unix:" + root() + "/c" + number + ".sock";
}

std::string Cluster::endpoint() const {
  std::string list = EndpointOf(0);
  for (int i = 1; i < options_.coordinators; ++i) list += "," + EndpointOf(i);
  return list;
}

std::string Cluster::RelayEndpoint(int relay) const {
  return "unix:" + root() + "/r" + std::to_string(relay) + ".sock";
}

std::string Cluster::EndpointsOfAgent(int node) const {
  std::string list;
  for (int i = 0; i < options_.relays; ++i) {
    list += RelayEndpoint((node + i) % options_.relays) + ",";
  }
  return list + endpoint();
}

std::string Cluster::CoordinatorDir(int index) const {
  return root() + "/coordinator" + (index == 0 ? "" : std::to_string(index));
}

Status Cluster::StartCoordinator(const std::string& crash, int index) {
  ProcessOptions process;
  process.argv =
      options_.coordinator_command.empty() ? ServerCommand() : options_.coordinator_command;
  process.argv.push_back(ProgramOf(options_.coordinator_programs, "holdfast-coordinator"));
  for (const std::string& setting :
       {std::string("cluster=local"), "listen=" + EndpointOf(index),
        "data_dir=" + CoordinatorDir(index),
        // The programs of these clusters never pause for long, so a hang leads to a quick restart.
        std::string("detect.restart_stuck_after_ms=5000"),
        std::string("detect.restart_absent_after_ms=5000"),
        "retention.keep_last=" + std::to_string(options_.keep_last)}) {
    process.argv.insert(process.argv.end(), {"--set", setting});
  }
  for (const std::string& setting : options_.coordinator_settings) {
    process.argv.insert(process.argv.end(), {"--set", setting});
  }
  process.env = CrashEnv(crash);
  process.log_path = CoordinatorLog(index);
  HOLDFAST_ASSIGN_OR_RETURN(coordinators_[static_cast<size_t>(index)], Process::Start(process));
  return Status::Ok();
}

Status Cluster::StartRelay(int index) {
  std::string upstream;
  for (int i = 0; i < options_.coordinators; ++i) {
    upstream += (i == 0 ? "\"" : ",\"") + EndpointOf(i) + "\"";
  }
  ProcessOptions process;
  process.argv = ServerCommand();
  process.argv.insert(process.argv.end(),
                      {ProgramOf(options_.coordinator_programs, "holdfast-coordinator"), "--set",
                       "cluster=local", "--set", "role=relay", "--set",
                       "listen=" + RelayEndpoint(index), "--set", "upstream=[" + upstream + "]"});
  process.log_path = RelayLog(index);
  HOLDFAST_ASSIGN_OR_RETURN(relays_[static_cast<size_t>(index)], Process::Start(process));
  return Status::Ok();
}

Status Cluster::StartRelays() {
  for (int i = 0; i < options_.relays; ++i) HOLDFAST_RETURN_IF_ERROR(StartRelay(i));
  // Otherwise agents would go on to the next address at once.
  for (int i = 0; i < options_.relays; ++i) {
    const bool connected = WaitUntil(
        [&] { return ReadAll(RelayLog(i)).find("CoordinatorAttached") != std::string::npos; },
        kStartTimeout);
    if (!connected) {
      return UnavailableError("a relay did not start:\n" + ReadAll(RelayLog(i)));
    }
  }
  return Status::Ok();
}

Status Cluster::StartAgent(int node, const std::string& crash) {
  HOLDFAST_RETURN_IF_ERROR(MakeDirectories(NodeDir(node)));
  std::string dirs;
  for (const std::string& dir : DataDirs(node)) dirs += (dirs.empty() ? "\"" : ",\"") + dir + "\"";
  ProcessOptions process;
  process.argv = ServerCommand();
  if (auto it = options_.agent_command_of.find(node); it != options_.agent_command_of.end()) {
    process.argv = it->second;
  }
  std::string programs;
  if (auto it = options_.agent_programs_of.find(node); it != options_.agent_programs_of.end()) {
    programs = it->second;
  }
  process.argv.insert(process.argv.end(), {ProgramOf(programs, "holdfast-agent"),
                                           "--set",
                                           "cluster=local",
                                           "--set",
                                           "node=n" + std::to_string(node),
                                           "--set",
                                           "coordinator=" + EndpointsOfAgent(node),
                                           "--set",
                                           "data_listen=unix:" + NodeDir(node) + "/d.sock",
                                           "--set",
                                           "peers.listen=unix:" + PeerSocket(node),
                                           "--set",
                                           "run_dir=" + RunDir(node),
                                           "--set",
                                           "data_dirs=[" + dirs + "]",
                                           "--set",
                                           "arena.bytes=" + std::to_string(options_.arena_bytes),
                                           "--set",
                                           "disk.every=" + std::to_string(options_.disk_every),
                                           "--set",
                                           "workers.enabled=true",
                                           "--set",
                                           "workers.log_dir=" + NodeDir(node) + "/log"});
  std::vector<std::string> settings = options_.agent_settings;
  if (auto it = options_.agent_settings_of.find(node); it != options_.agent_settings_of.end()) {
    settings.insert(settings.end(), it->second.begin(), it->second.end());
  }
  for (const std::string& setting : settings) {
    process.argv.insert(process.argv.end(), {"--set", setting});
  }
  process.env = CrashEnv(crash);
  process.log_path = AgentLog(node);
  HOLDFAST_ASSIGN_OR_RETURN(agents_[node], Process::Start(process));
  return Status::Ok();
}

void Cluster::Reconfigure(const ClusterOptions& options) {
  options_.agent_settings_of = options.agent_settings_of;
  options_.agent_command_of = options.agent_command_of;
  options_.agent_programs_of = options.agent_programs_of;
  options_.coordinator_command = options.coordinator_command;
  options_.coordinator_programs = options.coordinator_programs;
  options_.cli_command = options.cli_command;
  options_.cli_programs = options.cli_programs;
}

Status Cluster::AwaitAgent(int node) {
  bool answered = WaitUntil(
      [&] { return !agents_[node].running() || agent::ConnectUnix(AgentSocket(node)).has_value(); },
      kStartTimeout);
  if (answered && agents_[node].running()) return Status::Ok();
  return UnavailableError("agent n" + std::to_string(node) + " did not start:\n" +
                          ReadAll(AgentLog(node)));
}

Status Cluster::Start() {
  HOLDFAST_RETURN_IF_ERROR(MakeDirectories(root()));
  for (int i = 0; i < options_.coordinators; ++i) {
    HOLDFAST_RETURN_IF_ERROR(StartCoordinator("", i));
  }
  HOLDFAST_RETURN_IF_ERROR(StartRelays());
  for (int node = 0; node < nodes(); ++node) HOLDFAST_RETURN_IF_ERROR(StartAgent(node));
  for (int node = 0; node < nodes(); ++node) HOLDFAST_RETURN_IF_ERROR(AwaitAgent(node));
  if (!options_.injectors) return Status::Ok();
  for (int node = 0; node < nodes(); ++node) HOLDFAST_RETURN_IF_ERROR(StartInjector(node));
  return StartCoordinatorInjector();
}

Status Cluster::StartInjectorIn(const std::string& folder, std::vector<std::string> command,
                                const std::vector<std::string>& settings, Process* process) {
  ProcessOptions options;
  options.argv = std::move(command);
  options.argv.push_back(BinaryDir() + "/holdfast-fault");
  for (const std::string& setting :
       {std::string("cluster=local"), "listen=unix:" + folder + "/fault.sock",
        "run_dir=" + folder + "/fault", "coordinator=" + endpoint(),
        std::string("drills.enabled=true")}) {
    options.argv.insert(options.argv.end(), {"--set", setting});
  }
  for (const auto& more : {settings, options_.injector_settings}) {
    for (const std::string& setting : more) {
      options.argv.insert(options.argv.end(), {"--set", setting});
    }
  }
  options.log_path = folder + "/fault.log";
  const size_t logged = ReadAll(options.log_path).size();  // by an earlier start
  HOLDFAST_ASSIGN_OR_RETURN(*process, Process::Start(options));
  const bool ready = WaitUntil(
      [&] {
        return !process->running() ||
               ReadAll(options.log_path).find("InjectorReady", logged) != std::string::npos;
      },
      kStartTimeout);
  if (ready && process->running()) return Status::Ok();
  return UnavailableError("the fault injector did not start:\n" + ReadAll(options.log_path));
}

Status Cluster::StartInjector(int node) {
  std::string dirs;
  for (const std::string& dir : DataDirs(node)) dirs += (dirs.empty() ? "\"" : ",\"") + dir + "\"";
  std::vector<std::string> settings = {"node=n" + std::to_string(node),
                                       "agent_run_dir=" + RunDir(node), "data_dirs=[" + dirs + "]"};
  if (auto it = options_.injector_settings_of.find(node);
      it != options_.injector_settings_of.end()) {
    settings.insert(settings.end(), it->second.begin(), it->second.end());
  }
  std::vector<std::string> command;
  if (auto it = options_.agent_command_of.find(node); it != options_.agent_command_of.end()) {
    command = it->second;
  }
  return StartInjectorIn(NodeDir(node), std::move(command), settings, &injectors_[node]);
}

Status Cluster::StartCoordinatorInjector() {
  std::vector<std::string> settings = {"node="};
  settings.insert(settings.end(), options_.coordinator_injector_settings.begin(),
                  options_.coordinator_injector_settings.end());
  return StartInjectorIn(root(), options_.coordinator_command, settings, &coordinator_injector_);
}

pid_t Cluster::KeeperPid(int node) const {
  auto socket = agent::ConnectUnix(RunDir(node) + "/keeper.sock");
  if (!socket) return 0;
  auto credentials = agent::CredentialsOf(socket->get());
  return credentials ? credentials->pid : 0;
}

void Cluster::KillKeeper(int node) {
  pid_t pid = KeeperPid(node);
  if (pid <= 0) return;
  auto pidfd = PidFdOf(pid);
  ::kill(pid, SIGKILL);
  // The keeper is not our child: init reaps it. It has ended when its socket refuses connections.
  WaitUntil([&] { return KeeperPid(node) != pid; }, kStartTimeout);
}

void Cluster::DestroyNode(int node) {
  agents_[node].Kill();
  KillKeeper(node);
  for (const std::string& dir : DataDirs(node)) std::filesystem::remove_all(dir);
  std::filesystem::remove_all(RunDir(node));
}

void Cluster::KillEverything() {
  for (Process& injector : injectors_) injector.Kill();
  coordinator_injector_.Kill();
  for (Process& coordinator : coordinators_) coordinator.Signal(SIGKILL);
  for (Process& agent : agents_) agent.Signal(SIGKILL);
  for (Process& coordinator : coordinators_) coordinator.Kill();
  for (Process& agent : agents_) agent.Kill();
  for (int node = 0; node < nodes(); ++node) KillKeeper(node);
}

Result<Cluster::CliResult> Cluster::Cli(std::vector<std::string> arguments,
                                        milliseconds timeout) const {
  HOLDFAST_ASSIGN_OR_RETURN(std::string dir, MakeTempDir("hf-cli"));
  ProcessOptions process;
  process.argv = options_.cli_command;
  process.argv.push_back(ProgramOf(options_.cli_programs, "holdfast"));
  if (std::find(arguments.begin(), arguments.end(), "--endpoint") == arguments.end()) {
    process.argv.insert(process.argv.end(), {"--endpoint", endpoint()});
  }
  process.argv.insert(process.argv.end(), options_.cli_options.begin(), options_.cli_options.end());
  process.argv.insert(process.argv.end(), arguments.begin(), arguments.end());
  process.log_path = dir + "/out";
  process.error_path = dir + "/errors";
  HOLDFAST_ASSIGN_OR_RETURN(Process child, Process::Start(process));
  child.WaitFor(timeout);
  CliResult result{child.exit_code().value_or(-1), ReadAll(process.log_path),
                   ReadAll(process.error_path)};
  std::filesystem::remove_all(dir);
  return result;
}

std::string ReadAll(const std::string& path) {
  // A file of /proc whose process ends meanwhile reads as empty. An iterator would throw.
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

Result<std::string> MakeTempDir(const std::string& prefix) {
  const char* base = std::getenv("TMPDIR");
  std::string path = std::string(base != nullptr ? base : "/tmp") + "/" + prefix + ".XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return Fail(ErrnoStatus(errno, "mkdtemp " + path));
  return path;
}

}  // namespace holdfast::local
