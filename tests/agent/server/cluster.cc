#include "tests/agent/server/cluster.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "agent/arena/keeper_client.h"
#include "base/clock.h"
#include "base/process.h"
#include "coordinator/api/channel.h"
#include "coordinator/api/convert.h"
#include "storage/format/chunk.h"
#include "tests/agent/pipeline/harness.h"

extern char** environ;

namespace holdfast::agent {
namespace {
std::string BinDir() {
  const char* dir = ::getenv("HOLDFAST_BIN_DIR");
  return dir != nullptr ? dir : ".";
}
}  // namespace

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// ---- programs ----

Program::Program(Program&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), status_(other.status_) {}

Program& Program::operator=(Program&& other) noexcept {
  if (this != &other) {
    Kill();
    pid_ = std::exchange(other.pid_, 0);
    status_ = other.status_;
  }
  return *this;
}

Program::~Program() { Kill(); }

Result<Program> Program::Start(const std::vector<std::string>& args,
                               const std::vector<std::string>& env, const std::string& log) {
  std::vector<char*> argv;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (char** entry = environ; *entry != nullptr; ++entry) envp.push_back(*entry);
  for (const std::string& entry : env) envp.push_back(const_cast<char*>(entry.c_str()));
  envp.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  Program program;
  const int error =
      ::posix_spawn(&program.pid_, argv[0], &actions, nullptr, argv.data(), envp.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Fail(ErrnoStatus(error, "start " + args[0]));
  return program;
}

bool Program::running() { return pid_ > 0 && Wait(0) == -1; }

void Program::Signal(int signal) {
  if (pid_ > 0) ::kill(pid_, signal);
}

int Program::Wait(int timeout_ms) {
  if (pid_ <= 0) return status_;
  int status = 0;
  if (!Eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, timeout_ms)) {
    return -1;
  }
  pid_ = 0;
  return status_ = status;
}

void Program::Kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  Wait(20'000);
}

// ---- the cluster ----

TestCluster::TestCluster() : root_(MakeTempDir()) {}

TestCluster::~TestCluster() {
  for (auto& [node, agent] : agents_) {
    agent.Kill();
    KillKeeper(node);
  }
  coordinator_.Kill();
  RemoveTree(root_);
}

Status TestCluster::StartCoordinator() {
  HOLDFAST_ASSIGN_OR_RETURN(
      coordinator_,
      Program::Start({BinDir() + "/holdfast-coordinator", "--set", "cluster=test", "--set",
                      "listen=unix:" + root_ + "/c.sock", "--set", "data_dir=" + root_ + "/c"},
                     {}, root_ + "/c.log"));
  auto stub = Control();
  const bool up =
      Eventually([&] {
        coordinator::GetStatusRequest request;
        coordinator::GetStatusReply reply;
        grpc::ClientContext context;
        // Wait within the call: otherwise a channel that has failed once retries only every 5 s.
        context.set_wait_for_ready(true);
        context.set_deadline(
            gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(1, GPR_TIMESPAN)));
        return stub->GetStatus(&context, request, &reply).ok() || !coordinator_.running();
      }) &&
      coordinator_.running();
  return up ? Status::Ok() : UnavailableError(ReadText(root_ + "/c.log"));
}

std::vector<std::string> TestCluster::AgentArgs(int node,
                                                const std::vector<std::string>& settings) const {
  const std::string dir = NodeDir(node);
  std::vector<std::string> args = {BinDir() + "/holdfast-agent"};
  std::vector<std::string> all = {"cluster=test",
                                  "node=n" + std::to_string(node),
                                  "coordinator=unix:" + root_ + "/c.sock",
                                  "data_listen=unix:" + dir + "/d.sock",
                                  "run_dir=" + dir + "/run",
                                  "data_dirs=[\"" + dir + "/data\"]",
                                  "arena.bytes=64MiB",
                                  "disk.every=1"};
  all.insert(all.end(), settings.begin(), settings.end());
  for (const std::string& setting : all) {
    args.push_back("--set");
    args.push_back(setting);
  }
  return args;
}

Status TestCluster::StartAgent(int node, const std::string& crash,
                               const std::vector<std::string>& settings) {
  std::filesystem::create_directories(NodeDir(node));
  std::vector<std::string> env;
  if (!crash.empty()) env.push_back("HOLDFAST_CRASH=" + crash);
  HOLDFAST_ASSIGN_OR_RETURN(
      agents_[node], Program::Start(AgentArgs(node, settings), env, NodeDir(node) + "/agent.log"));
  const bool up =
      Eventually([&] { return ConnectUnix(Socket(node)).has_value() || !agents_[node].running(); });
  if (up && agents_[node].running()) return Status::Ok();
  return UnavailableError(AgentLog(node));
}

void TestCluster::KillKeeper(int node) {
  auto keeper = KeeperClient::Connect(NodeDir(node) + "/run", Clock::Real());
  if (!keeper) return;
  auto usage = keeper->Usage();
  if (!usage || usage->pid <= 1) return;
  auto pid_fd = PidFdOf(usage->pid);
  if (!pid_fd) return;
  ::kill(usage->pid, SIGKILL);
  Eventually([&] { return ProcessGone(pid_fd->get()); });
}

std::string TestCluster::AgentLog(int node) const { return ReadText(NodeDir(node) + "/agent.log"); }

std::unique_ptr<Agent::Stub> TestCluster::Data(int node) const {
  auto endpoint = ParseEndpoint("unix:" + NodeDir(node) + "/d.sock");
  return Agent::NewStub(*coord::MakeChannel(*endpoint, {}, coord::kDataMessageBytesMax));
}

std::unique_ptr<coordinator::Coordinator::Stub> TestCluster::Control() const {
  auto endpoint = ParseEndpoint("unix:" + root_ + "/c.sock");
  return coordinator::Coordinator::NewStub(*coord::MakeChannel(*endpoint, {}));
}

Result<std::vector<std::byte>> ReadShardFrom(Agent::Stub& stub, const ShardKey& key, Tier tier,
                                             ShardSeal* seal, std::optional<ShardPart> part) {
  ReadShardRequest request;
  request.set_job(key.job);
  request.set_incarnation(key.version.incarnation.value);
  request.set_step(key.version.step.value);
  request.set_rank(key.rank.value);
  request.set_tier(static_cast<uint32_t>(tier));
  const uint64_t begin = part ? part->offset : 0;
  if (part) {
    request.set_part(true);
    request.set_offset(part->offset);
    request.set_bytes(part->bytes);
  }
  grpc::ClientContext context;
  auto reader = stub.ReadShard(&context, request);
  ShardPiece piece;
  std::vector<std::byte> image;
  bool first = true;
  while (reader->Read(&piece)) {
    if (first) {
      HOLDFAST_ASSIGN_OR_RETURN(*seal, DecodeSeal(std::as_bytes(std::span(piece.seal()))));
      first = false;
    }
    if (piece.data().empty()) continue;
    const auto bytes = std::as_bytes(std::span(piece.data()));
    if (piece.offset() != begin + image.size()) return Fail(DataLossError("chunks out of order"));
    const uint64_t index = piece.offset() / kChunkBytes;
    if (!IsChunk(*seal, index, bytes)) return Fail(BadChunkError(*seal, index));
    image.insert(image.end(), bytes.begin(), bytes.end());
  }
  const grpc::Status finished = reader->Finish();
  if (!finished.ok()) return Fail(coord::FromGrpc(finished, "agent"));
  return image;
}

}  // namespace holdfast::agent
