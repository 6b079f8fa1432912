// The users of one machine: what another user can do to the jobs of root, and what root's cluster
// does for that user. Each test needs root, who starts the processes of both users.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#define HOLDFAST_HPP_EXPLICIT_NAMESPACE
#include <holdfast/holdfast.hpp>
#include "testing/cluster/process.h"
#include "tests/e2e/cluster_test.h"

namespace holdfast::local {
namespace {
using nlohmann::json;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;
constexpr milliseconds kTimeout(60'000);
constexpr const char* kSecret = "canary-9f2c71d4";
constexpr uid_t kStranger = 65'534;
constexpr const char* kName = "nobody";

class UsersTest : public ClusterTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can start processes of other users";
    ASSERT_EQ(::chmod(root_.c_str(), 0711), 0);
    // Users need separate folders for the results.
    fs::create_directories(root_ + "/stranger");
    ASSERT_EQ(::chown((root_ + "/stranger").c_str(), kStranger, kStranger), 0);
    options_.nodes = 1;
    options_.arena_bytes = 64ULL << 20;
    options_.agent_settings = {"workers.enabled=true", "workers.log_dir=" + root_ + "/logs"};
    options_.agent_settings.insert(options_.agent_settings.end(), settings_.begin(),
                                   settings_.end());
    options_.coordinator_settings = coordinator_settings_;
    ASSERT_NO_FATAL_FAILURE(StartServers());
    // An agent may answer while the coordinator still starts.
    constexpr int kUnreachable = 5;
    ASSERT_TRUE(WaitUntil([&] { return Root({"status"}).exit_code != kUnreachable; }, kTimeout));
  }

  /// Runs the CLI as a user. Both outputs are in the result's `out`.
  Cluster::CliResult As(const std::string& user, std::vector<std::string> arguments,
                        milliseconds timeout = kTimeout) {
    ProcessOptions options;
    options.argv = {"/usr/bin/setpriv",        "--reuid=" + user,
                    "--clear-groups",          user == "root" ? "--regid=root" : "--regid=nogroup",
                    BinaryDir() + "/holdfast", "--endpoint",
                    cluster_->endpoint()};
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    options.log_path = root_ + fmt::format("/cli-{}.log", ++runs_);
    auto process = Process::Start(options);
    if (!process) return {-1, process.error().ToString(), ""};
    process->WaitFor(timeout);
    return {process->exit_code().value_or(-1), ReadAll(options.log_path), ""};
  }
  Cluster::CliResult Stranger(std::vector<std::string> arguments) {
    return As(kName, std::move(arguments));
  }
  Cluster::CliResult Root(std::vector<std::string> arguments) {
    return As("root", std::move(arguments));
  }
  static std::string SavedBytes() {
    std::string bytes(8192, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
    return bytes;
  }
  /// Saves one step of a job of this process's user, and returns its bytes.
  std::string Save(const std::string& job) {
    const std::string saved = SavedBytes();
    std::vector<uint8_t> bytes(saved.begin(), saved.end());
    v1::Options options;
    options.socket_path = cluster_->AgentSocket(0);
    options.job = job;
    options.run_id = "run";
    const v1::Tensor tensor = v1::Whole("secret.weight", bytes, {bytes.size()});
    auto client = v1::Client::Open(options, {&tensor, 1});
    EXPECT_TRUE(client.ok()) << client.status().ToString();
    if (!client.ok()) return "";
    EXPECT_TRUE(client->Save(1).ok());
    EXPECT_TRUE(client->Wait(1, v1::Tier::kDisk, std::chrono::seconds(30)).ok());
    EXPECT_TRUE(client->Close().ok());
    return saved;
  }

  /// Tries to join a job as a trainer of this process's user. Returns the error; empty: it joined.
  std::string ErrorOfJoin(const std::string& job, const std::string& run, uint32_t rank = 0,
                          uint32_t world = 1) {
    std::vector<uint8_t> bytes(SavedBytes().size());
    v1::Options options;
    options.socket_path = cluster_->AgentSocket(0);
    options.job = job;
    options.rank = rank;
    options.world = world;
    options.run_id = run;
    const v1::Tensor tensor = v1::Whole("secret.weight", bytes, {bytes.size()});
    auto client = v1::Client::Open(options, {&tensor, 1});
    return client.ok() ? "" : std::string(client.status().ToString());
  }
  /// Tries to join from a process of another user. "?": the process failed.
  std::string StrangersErrorOfJoin(const std::string& job, const std::string& run) {
    const std::string file = root_ + "/stranger/join-" + job + run;
    const pid_t child = ::fork();
    if (child == 0) {
      const bool user =
          ::setgroups(0, nullptr) == 0 && ::setgid(kStranger) == 0 && ::setuid(kStranger) == 0;
      std::ofstream(file) << ErrorOfJoin(job, run);
      ::_exit(user ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status == 0 && fs::exists(file) ? ReadAll(file) : "?";
  }

  /// Saves one step of a job in a process of another user. Returns the error of the wait for the
  /// disk; empty: the version is on disk. "?": the process failed.
  std::string StrangersErrorOfSave(const std::string& job) {
    const std::string file = root_ + "/stranger/save-" + job;
    const pid_t child = ::fork();
    if (child == 0) {
      const bool user =
          ::setgroups(0, nullptr) == 0 && ::setgid(kStranger) == 0 && ::setuid(kStranger) == 0;
      std::ofstream(file) << ErrorOfSave(job);
      ::_exit(user ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status == 0 && fs::exists(file) ? ReadAll(file) : "?";
  }
  std::string ErrorOfSave(const std::string& job) {
    std::vector<uint8_t> bytes(SavedBytes().size());
    v1::Options options;
    options.socket_path = cluster_->AgentSocket(0);
    options.job = job;
    options.run_id = "run";
    const v1::Tensor tensor = v1::Whole("secret.weight", bytes, {bytes.size()});
    auto client = v1::Client::Open(options, {&tensor, 1});
    if (!client.ok()) return std::string(client.status().ToString());
    const auto saved = client->Save(1);
    if (!saved.ok()) return std::string(saved.ToString());
    const auto waited = client->Wait(1, v1::Tier::kDisk, std::chrono::seconds(10));
    return waited.ok() ? "" : std::string(waited.ToString());
  }

  /// Opens a connection to the agent and closes it. Returns whether the connection needed no wait.
  bool FindsRoom() {
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    cluster_->AgentSocket(0).copy(at.sun_path, sizeof(at.sun_path) - 1);
    const bool connected = ::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0;
    ::close(fd);
    return connected;
  }

  std::vector<std::string> settings_;  // more of the agent
  std::vector<std::string> coordinator_settings_;
  int runs_ = 0;
};

TEST_F(UsersTest, AnotherUserGetsNothingOfRootsJob) {
  const std::string bytes = Save("roots");
  const std::string to = root_ + "/stranger/out";
  const std::vector<std::vector<std::string>> refused = {{"restore", "roots", "--to", to},
                                                         {"export", "roots", "--to", to},
                                                         {"verify", "roots", "--deep"},
                                                         {"versions", "roots"},
                                                         {"pin", "roots", "1-1"},
                                                         {"forget", "roots", "--yes"},
                                                         {"retain", "roots", "--keep-last", "1"},
                                                         {"stop", "roots", "--now"},
                                                         {"status", "roots"},
                                                         {"run", "--job", "roots", "--", "id"},
                                                         {"dump", "n0"},
                                                         {"audit"},
                                                         {"adopt", "roots"},
                                                         {"backup", to},
                                                         {"quarantine", "n0"}};
  for (const auto& arguments : refused) {
    const auto result = Stranger(arguments);
    EXPECT_NE(result.exit_code, 0) << arguments[0] << result.out;
    EXPECT_THAT(result.out, Not(HasSubstr("secret.weight"))) << arguments[0];
  }
  EXPECT_THAT(Stranger(refused[0]).out,
              HasSubstr(fmt::format("job 'roots' belongs to uid 0, and user {} (uid 65534) may use "
                                    "only its own jobs",
                                    kName)));
  EXPECT_FALSE(fs::exists(to + "/rank-0.safetensors"));
  const json status = json::parse(Stranger({"status", "-o", "json"}).out, nullptr, false);
  ASSERT_TRUE(status.is_object());
  EXPECT_TRUE(status["jobs"].empty()) << status.dump();
  EXPECT_EQ(status["other_jobs"], json::array({"roots"}));
  // Nor can a trainer of the user join the job, in its run or in the next one.
  for (const char* run : {"run", "another-run"}) {
    EXPECT_THAT(StrangersErrorOfJoin("roots", run), HasSubstr("uid 0")) << run;
  }
  EXPECT_EQ(StrangersErrorOfJoin("theirs", "run"), "") << "the user can join another job";
  // The job is intact, and its owner has it.
  const auto restored = Root({"restore", "roots", "--to", root_ + "/out"});
  EXPECT_EQ(restored.exit_code, 0) << restored.out;
  std::string found;
  for (const auto& entry : fs::recursive_directory_iterator(root_ + "/out")) {
    if (entry.is_regular_file()) found += ReadAll(entry.path());
  }
  EXPECT_THAT(found, HasSubstr(bytes));
}

/// Expects the owner and the mode of every shard's file of a job beneath `folder`. Returns their
/// number.
int ExpectFiles(const std::string& folder, const std::string& job, uid_t user, gid_t group,
                mode_t mode) {
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().string().find("/" + job + "/") == std::string::npos) continue;
    if (!entry.is_regular_file()) continue;
    struct stat info {};
    EXPECT_EQ(::stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_uid, user) << entry.path();
    EXPECT_EQ(info.st_gid, group) << entry.path();
    EXPECT_EQ(info.st_mode & 07777U, mode) << entry.path();
    ++files;
  }
  return files;
}

TEST_F(UsersTest, TheFilesOfAJobBelongToItsOwner) {
  Save("roots");
  const pid_t child = ::fork();
  if (child == 0) {
    const bool user =
        ::setgroups(0, nullptr) == 0 && ::setgid(kStranger) == 0 && ::setuid(kStranger) == 0;
    ::_exit(user && !Save("theirs").empty() && !::testing::Test::HasFailure() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  const std::string data = cluster_->DataDirs(0).at(0);
  EXPECT_GE(ExpectFiles(data, "theirs", kStranger, ::getegid(), 0600), 2);
  EXPECT_GE(ExpectFiles(data, "roots", 0, ::getegid(), 0600), 2);
  // The agent reads the files again, and restored files belong to the user who asks.
  cluster_->agent(0).Signal(SIGKILL);
  cluster_->agent(0).WaitFor(kTimeout);
  cluster_->KillKeeper(0);
  Status started = cluster_->StartAgent(0);
  if (started.ok()) started = cluster_->AwaitAgent(0);
  ASSERT_TRUE(started.ok()) << started.ToString();
  const std::string to = root_ + "/stranger/out";
  Cluster::CliResult exported;
  ASSERT_TRUE(WaitUntil(
      [&] {
        exported = Stranger({"restore", "theirs", "--to", to});
        return exported.exit_code == 0;
      },
      kTimeout))
      << exported.out;
  std::string found;
  for (const auto& entry : fs::recursive_directory_iterator(to)) {
    struct stat info {};
    ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_uid, kStranger) << entry.path();
    if (entry.is_regular_file()) found += ReadAll(entry.path());
  }
  EXPECT_THAT(found, HasSubstr(SavedBytes()));
  EXPECT_EQ(Stranger({"verify", "theirs", "--deep"}).exit_code, 0);
  // Not even root joins the job of another user.
  EXPECT_THAT(ErrorOfJoin("theirs", "next"), HasSubstr("uid 65534"));
}

TEST_F(UsersTest, WorkersRunAsTheUserWhoAsks) {
  const std::string script =
      "id -un; id -G; echo home=$HOME user=$USER; env; cat /proc/self/status; umask";
  const auto result =
      Stranger({"run", "--job", "mine", "--chdir", "/", "--", "/bin/sh", "-c", script});
  EXPECT_EQ(result.exit_code, 0) << result.out;
  std::string log;
  struct stat file {};
  struct stat folder {};
  for (const auto& entry : fs::recursive_directory_iterator(root_ + "/logs/mine")) {
    if (entry.path().filename() != "rank-0.log") continue;
    log = ReadAll(entry.path());
    ASSERT_EQ(::stat(entry.path().c_str(), &file), 0);
    ASSERT_EQ(::stat(entry.path().parent_path().c_str(), &folder), 0);
  }
  EXPECT_THAT(log, ::testing::StartsWith(kName + std::string("\n65534\n")));
  EXPECT_THAT(log, HasSubstr(fmt::format("home=/nonexistent user={}\n", kName)));
  EXPECT_THAT(log, HasSubstr("Uid:\t65534\t65534\t65534\t65534"));
  EXPECT_THAT(log, HasSubstr("CapEff:\t0000000000000000"));
  EXPECT_THAT(log, HasSubstr("CapPrm:\t0000000000000000"));
  EXPECT_THAT(log, HasSubstr("CapAmb:\t0000000000000000"));
  EXPECT_EQ(file.st_uid, kStranger);
  EXPECT_EQ(file.st_mode & 0777, 0600U);
  EXPECT_EQ(folder.st_uid, kStranger);
  EXPECT_EQ(folder.st_mode & 0777, 0700U);
  // The job belongs to the user now, although no trainer has opened it.
  EXPECT_THAT(Stranger({"runs", "mine"}).out, HasSubstr("finished"));
  const auto again = Stranger({"run", "--job", "mine", "--chdir", "/", "--", "true"});
  EXPECT_EQ(again.exit_code, 0) << again.out;
  EXPECT_NE(As("games", {"run", "--job", "mine", "--chdir", "/", "--", "id"}).exit_code, 0);
  const auto roots = Root({"run", "--job", "mine", "--chdir", "/", "--", "id"});
  EXPECT_NE(roots.exit_code, 0);
  EXPECT_THAT(roots.out, HasSubstr("job 'mine' belongs to uid 65534"));
  EXPECT_EQ(Root({"run", "--job", "roots", "--chdir", "/", "--", "true"}).exit_code, 0);
}

TEST_F(UsersTest, OnlyConfiguredUsersCanBeNamed) {
  const std::vector<std::string> run = {"run",     "--job", "other", "--user", "games",
                                        "--chdir", "/",     "--",    "id"};
  EXPECT_THAT(Stranger(run).out,
              HasSubstr("only an operator or a runner may start workers of another user"));
  EXPECT_THAT(Root(run).out, HasSubstr("access.run_as_users of the coordinator does not name"));
}

/// A user who takes all connections of an agent must not lock out other users.
TEST_F(UsersTest, AFloodOfOneUserDoesNotDelayAnother) {
  std::ofstream(root_ + "/stranger/flood.py") << R"(
import socket, sys, time, threading
agent, coordinator = sys.argv[1:3]
kept = []
def flood():
    n = 0
    end = time.monotonic() + 12
    while time.monotonic() < end:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.settimeout(0.05)
        try:
            s.connect(agent)
            kind = n % 4
            if kind == 1: s.send(b'x')
            if kind == 2: s.send(b'y' * 60000)
            if kind == 3: s.send(b'')
            kept.append(s)
        except OSError: pass
        t = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        t.settimeout(0.05)
        try:
            t.connect(coordinator)
            if n % 3 == 1: t.send(b'PRI * HTTP/2.0')
            kept.append(t)
        except OSError: pass
        n += 1
        if len(kept) > 900: del kept[:300]
        if n % 50 == 0: time.sleep(0.01)
    print(n, flush=True)
threads = [threading.Thread(target=flood) for _ in range(2)]
print('begun', flush=True)
for t in threads: t.start()
for t in threads: t.join()
)";
  ProcessOptions flood;
  flood.argv = {"/usr/bin/setpriv",       "--reuid=65534",
                "--clear-groups",         "--regid=nogroup",
                "/usr/bin/python3",       root_ + "/stranger/flood.py",
                cluster_->AgentSocket(0), cluster_->endpoint().substr(5)};
  flood.log_path = root_ + "/flood.log";
  auto process = Process::Start(flood);
  ASSERT_TRUE(process) << process.error().ToString();
  ASSERT_TRUE(WaitUntil([&] { return !ReadAll(flood.log_path).empty(); }, kTimeout));
  std::this_thread::sleep_for(milliseconds(1500));
  std::vector<uint8_t> bytes(4096);
  const v1::Tensor tensor = v1::Whole("w", bytes, {bytes.size()});
  milliseconds longest(0);
  int full = 0;  // connections that found no room in the queue of the socket
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(process->running()) << ReadAll(flood.log_path);
    for (int attempt = 0; attempt < 200; ++attempt) full += FindsRoom() ? 0 : 1;
    v1::Options options;
    options.socket_path = cluster_->AgentSocket(0);
    options.job = fmt::format("roots{}", i);
    options.run_id = "run";
    const auto began = std::chrono::steady_clock::now();
    auto client = v1::Client::Open(options, {&tensor, 1});
    longest = std::max(longest, std::chrono::duration_cast<milliseconds>(
                                    std::chrono::steady_clock::now() - began));
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    EXPECT_TRUE(client->Close().ok());
  }
  EXPECT_EQ(full, 0);
  EXPECT_LE(longest.count(), 1000) << "an Open waits for the connections of another user";
  RecordProperty("longest_open_ms", static_cast<int>(longest.count()));
  std::fprintf(stderr, "longest Open during the flood: %d ms\n", static_cast<int>(longest.count()));
  EXPECT_THAT(Root({"status"}).out, HasSubstr("roots4")) << "the coordinator answers, too";
  process->WaitFor(kTimeout);
}

class UserLimitTest : public UsersTest {
 protected:
  UserLimitTest() { settings_ = {"limits.sessions_per_user=10"}; }
};

TEST_F(UserLimitTest, OneUserHasAtMostTheConfiguredNumberOfConnections) {
  std::ofstream(root_ + "/stranger/connect.py") << R"(
import select, socket, sys, time
kept = []
for _ in range(25):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(sys.argv[1])
    kept.append(s)
    time.sleep(0.02)
def ended(): return len(select.select(kept, [], [], 0.5)[0])
end = time.monotonic() + 10
while ended() < 15 and time.monotonic() < end: time.sleep(0.05)
time.sleep(0.5)
print('ended', ended(), flush=True)
time.sleep(60)
)";
  ProcessOptions connect;
  connect.argv = {"/usr/bin/setpriv",      "--reuid=65534",    "--clear-groups",
                  "--regid=nogroup",       "/usr/bin/python3", root_ + "/stranger/connect.py",
                  cluster_->AgentSocket(0)};
  connect.log_path = root_ + "/connect.log";
  auto process = Process::Start(connect);
  ASSERT_TRUE(process) << process.error().ToString();
  ASSERT_TRUE(WaitUntil([&] { return !ReadAll(connect.log_path).empty(); }, kTimeout));
  EXPECT_EQ(ReadAll(connect.log_path), "ended 15\n");
  EXPECT_FALSE(Save("roots").empty()) << "the limit is that of another user";
}

class UserQuotaTest : public UsersTest {
 protected:
  // An image has 12 KiB, and its memory 3 slots of 2 MiB and 1 MiB of control.
  UserQuotaTest() {
    settings_ = {"limits.disk_bytes_per_user=30KiB", "limits.arena_bytes_per_job=8MiB"};
  }
};

TEST_F(UserQuotaTest, TheDiskOfAllJobsOfAUserIsLimited) {
  EXPECT_EQ(StrangersErrorOfSave("one"), "");
  EXPECT_EQ(StrangersErrorOfSave("two"), "");
  const std::string refused = StrangersErrorOfSave("three");
  EXPECT_THAT(refused, HasSubstr("disk quota of uid 65534: three/1-1/rank-0 needs 12 KiB"));
  EXPECT_THAT(refused, HasSubstr("24 KiB of 30 KiB"));
  EXPECT_THAT(refused, HasSubstr("limits.disk_bytes_per_user"));
  EXPECT_THAT(Root({"status"}).out, HasSubstr("DISK_FULL"));
  // Root has no such quota, and what it saves counts for no other user.
  for (const char* job : {"roots1", "roots2", "roots3"}) EXPECT_FALSE(Save(job).empty());
  // A job that is forgotten counts no more.
  ASSERT_TRUE(WaitUntil(
      [&] {
        return Stranger({"forget", "one", "--yes"}).exit_code == 0;
      },
      kTimeout));
  EXPECT_TRUE(WaitUntil([&] { return StrangersErrorOfSave("four").empty(); }, kTimeout));
}

TEST_F(UserQuotaTest, TheMemoryOfAJobIsLimited) {
  EXPECT_EQ(ErrorOfJoin("one", "run", 0, 2), "");
  const std::string refused = ErrorOfJoin("one", "run", 1, 2);
  EXPECT_THAT(refused, HasSubstr("one/rank-1 needs 7 MiB"));
  EXPECT_THAT(refused, HasSubstr("the job has 7 MiB of the 8 MiB"));
  EXPECT_THAT(refused, HasSubstr("limits.arena_bytes_per_job"));
  EXPECT_EQ(ErrorOfJoin("two", "run", 0, 1), "") << "each job has a separate quota";
}

/// A cluster whose servers read files with the secret.
class SecretsTest : public UsersTest {
 protected:
  SecretsTest() {
    const std::string secret = WriteFile("peers.secret");
    const std::string token = WriteFile("token");
    settings_ = {"peers.secret_file=" + secret, "metrics.token_file=" + token,
                 "metrics.listen=127.0.0.1:0"};
    coordinator_settings_ = {"metrics.token_file=" + token, "metrics.listen=127.0.0.1:0",
                             "ui.token_file=" + token, "ui.listen=127.0.0.1:0"};
  }
  ~SecretsTest() override {
    std::error_code ignored;
    fs::remove_all(files_, ignored);
  }
  SecretsTest(const SecretsTest&) = delete;
  SecretsTest& operator=(const SecretsTest&) = delete;

  /// What a server prints for --print-config with these settings.
  std::string Printed(const std::string& program, const std::vector<std::string>& settings) const {
    ProcessOptions options;
    options.argv = {BinaryDir() + "/" + program, "--print-config"};
    for (const std::string& setting : settings) {
      options.argv.insert(options.argv.end(), {"--set", setting});
    }
    options.env["TOKEN"] = kSecret;
    options.log_path = files_ + "/" + program + ".log";
    auto process = Process::Start(options);
    EXPECT_TRUE(process) << process.error().ToString();
    process->WaitFor(kTimeout);
    EXPECT_EQ(process->exit_code(), 0) << ReadAll(options.log_path);
    return ReadAll(options.log_path);
  }

 private:
  std::string WriteFile(const std::string& name) const {
    std::string path = files_ + "/" + name;
    std::ofstream(path) << kSecret << "-of-servers";
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
    return path;
  }

  const std::string files_ = MakeTempDir("hfk").value();
};

TEST_F(SecretsTest, NoSecretIsInAnyPlaceButTheWorkers) {
  const std::string file = root_ + "/stranger/env";
  std::ofstream(file) << "TOKEN=" << kSecret << "\n";
  ASSERT_EQ(::chown(file.c_str(), kStranger, kStranger), 0);
  ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  const auto run = Stranger({"run", "--job", "mine", "--chdir", "/", "--detach", "--env-file", file,
                             "--", "/bin/sh", "-c", "test -n \"$TOKEN\" && sleep 20"});
  ASSERT_EQ(run.exit_code, 0) << run.out;
  const auto runs = [&] { return Stranger({"runs", "mine"}).out; };
  ASSERT_TRUE(WaitUntil([&] { return runs().find("running") != std::string::npos; }, kTimeout));
  std::string seen;
  for (const std::vector<std::string>& shown :
       std::vector<std::vector<std::string>>{{"runs", "mine", "-o", "json"},
                                             {"status", "-o", "json"},
                                             {"dump", "n0"},
                                             {"audit"},
                                             {"incidents", "-o", "json"}}) {
    seen += Root(shown).out;
  }
  seen += ReadAll(cluster_->AgentLog(0)) + ReadAll(cluster_->CoordinatorLog());
  seen += ReadAll(cluster_->RunDir(0) + "/keeper.log");
  for (const auto& [program, settings] :
       {std::pair("holdfast-agent", settings_),
        std::pair("holdfast-coordinator", coordinator_settings_)}) {
    const std::string printed = Printed(program, settings);
    EXPECT_THAT(printed, HasSubstr("/token\"\n")) << "the names of the files are shown";
    seen += printed;
  }
  for (const auto& entry : fs::directory_iterator("/proc")) {
    seen += ReadAll(entry.path().string() + "/cmdline");
  }
  EXPECT_THAT(seen, Not(HasSubstr(kSecret)));
  // Other users cannot read the files with the secret.
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root_)) {
    if (!entry.is_regular_file() || ReadAll(entry.path()).find(kSecret) == std::string::npos) {
      continue;
    }
    ++files;
    struct stat info {};
    ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0077, 0U) << entry.path();
  }
  EXPECT_GE(files, 2) << "the specification of the worker and the user's own file";
  for (const pid_t pid :
       {cluster_->agent(0).pid(), cluster_->coordinator().pid(), cluster_->KeeperPid(0)}) {
    struct stat maps {};
    ASSERT_EQ(::stat(fmt::format("/proc/{}/maps", pid).c_str(), &maps), 0);
    const std::string limits = ReadAll(fmt::format("/proc/{}/limits", pid));
    EXPECT_THAT(limits, ::testing::ContainsRegex("Max core file size +0 +"));
    // The kernel passes a core dump to a program in spite of the limit, but leaves this memory out.
    EXPECT_EQ(ReadAll(fmt::format("/proc/{}/coredump_filter", pid)), "00000000\n");
  }
  EXPECT_EQ(Stranger({"stop", "mine", "--now"}).exit_code, 0);
}

}  // namespace
}  // namespace holdfast::local
