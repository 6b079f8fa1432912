#include "agent/arena/keeper.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <thread>

#include "agent/api/messages.h"
#include "tests/agent/arena/arena_fixture.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;

UniqueFd MemoryWith(char byte) {
  UniqueFd fd(::memfd_create("kept", MFD_CLOEXEC));
  EXPECT_EQ(::write(fd.get(), &byte, 1), 1);
  return fd;
}
char FirstByte(const UniqueFd& fd) {
  char byte = 0;
  EXPECT_EQ(::pread(fd.get(), &byte, 1, 0), 1);
  return byte;
}

class KeeperTest : public ::testing::Test {
 protected:
  KeeperClient Connect() {
    auto client =
        KeeperClient::ConnectOrStart(run_dir_.path(), RunDir::KeeperBinary(), Clock::Real());
    EXPECT_TRUE(client) << client.error().ToString();
    return *std::move(client);
  }
  std::string Log() const {
    std::ifstream file(run_dir_.path() + "/keeper.log");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  RunDir run_dir_;
};

TEST_F(KeeperTest, HoldsDescriptorsAcrossItsClients) {
  {
    KeeperClient client = Connect();
    UniqueFd a = MemoryWith('a');
    UniqueFd b = MemoryWith('b');
    UniqueFd c = MemoryWith('c');
    int two[2] = {a.get(), b.get()};
    ASSERT_TRUE(client.Put("first", "note of first", two).ok());
    int one[1] = {c.get()};
    ASSERT_TRUE(client.Put("second", "", one).ok());
  }
  KeeperClient client = Connect();
  EXPECT_EQ(client.Usage()->entries, 2U);
  EXPECT_EQ(client.Usage()->bytes, 3U);
  auto first = client.Next("");
  ASSERT_TRUE(first && first->has_value());
  EXPECT_EQ((*first)->name, "first");
  EXPECT_EQ((*first)->note, "note of first");
  ASSERT_EQ((*first)->fds.size(), 2U);
  EXPECT_EQ(FirstByte((*first)->fds[0]), 'a');
  EXPECT_EQ(FirstByte((*first)->fds[1]), 'b');
  auto second = client.Next("first");
  ASSERT_TRUE(second && second->has_value());
  EXPECT_EQ(FirstByte((*second)->fds[0]), 'c');
  EXPECT_FALSE(client.Next("second")->has_value());

  int replacement[1] = {(*second)->fds[0].get()};
  ASSERT_TRUE(client.Put("first", "new", replacement).ok());
  EXPECT_EQ(client.Usage()->entries, 2U);
  EXPECT_EQ((*client.Next(""))->note, "new");
  ASSERT_TRUE(client.Drop("first").ok());
  ASSERT_TRUE(client.Drop("first").ok()) << "dropping again is no error";
  EXPECT_EQ((*client.Next(""))->name, "second");
}

TEST_F(KeeperTest, RefusesWhatItCannotHold) {
  KeeperClient client = Connect();
  UniqueFd fd = MemoryWith('x');
  int one[1] = {fd.get()};
  EXPECT_EQ(client.Put("", "", one).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(client.Put("../up", "", one).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(client.Put(std::string(64, 'n'), "", one).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(client.Put(std::string(63, 'n'), std::string(256, 'x'), one).ok());
  EXPECT_EQ(client.Put("n", std::string(257, 'x'), one).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(client.Put("none", "", {}).code(), ErrorCode::kInvalidArgument);
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  EXPECT_EQ(client.Put("pipe", "", std::span(pipe_ends, 2)).code(), ErrorCode::kInvalidArgument);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  EXPECT_EQ(client.Usage()->entries, 1U);
}

TEST_F(KeeperTest, GarbageEndsTheConnectionNotTheKeeper) {
  KeeperClient client = Connect();
  pid_t pid = client.Usage()->pid;
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    auto socket = ConnectUnix(KeeperSocketPath(run_dir_.path()));
    ASSERT_TRUE(socket);
    size_t bytes = random.OneIn(2) ? sizeof(KeeperRequest) : 1 + random.Below(1000);
    std::vector<std::byte> packet(bytes);
    for (std::byte& b : packet) b = static_cast<std::byte>(random.Next());
    KeeperRequest head;
    if (random.OneIn(2)) {
      head.op = static_cast<KeeperOp>(random.OneIn(2) ? 1 + random.Below(3) : random.Next());
      head.note_bytes = static_cast<uint32_t>(random.Next());
      if (head.op == KeeperOp::kShutdown) head.op = KeeperOp::kUsage;
      std::memcpy(packet.data(), &head, std::min<size_t>(bytes, 16));
    }
    int fd = 0;
    std::span<const int> fds(&fd, random.OneIn(2) ? 1 : 0);
    static_cast<void>(SendPacket(socket->get(), packet, fds));
    static_cast<void>(AwaitPacket(socket->get(), 4096, 2000, Clock::Real()));
  }
  auto usage = client.Usage();
  ASSERT_TRUE(usage) << usage.error().ToString();
  EXPECT_EQ(usage->pid, pid);
  EXPECT_EQ(usage->entries, 0U);
  size_t open = 0;
  for ([[maybe_unused]] const auto& each :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    ++open;
  }
  EXPECT_LT(open, 16U) << "descriptors leak";
}

TEST_F(KeeperTest, TooManyClientsAreRefusedWithTheNumber) {
  std::vector<KeeperClient> clients;
  for (size_t i = 0; i < kKeeperClientsMax; ++i) clients.push_back(Connect());
  auto refused = KeeperClient::Connect(run_dir_.path(), Clock::Real());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), HasSubstr("16 clients"));
  EXPECT_TRUE(clients.front().Usage());
}

TEST_F(KeeperTest, ServesOnlyItsUserAndRoot) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  KeeperClient client = Connect();
  ASSERT_EQ(::chmod(run_dir_.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(KeeperSocketPath(run_dir_.path()).c_str(), 0666), 0);
  pid_t child = ::fork();
  if (child == 0) {
    bool changed = ::setgroups(0, nullptr) == 0 && ::setgid(65534) == 0 && ::setuid(65534) == 0;
    auto stranger = KeeperClient::Connect(run_dir_.path(), Clock::Real());
    bool refused = !stranger && stranger.error().code() == ErrorCode::kPermissionDenied &&
                   stranger.error().message().find("serves user 0") != std::string::npos;
    ::_exit(changed && refused ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(KeeperTest, ManyStartersGetOneKeeper) {
  std::vector<pid_t> pids(8);
  std::vector<std::thread> threads;
  for (pid_t& pid : pids) {
    threads.emplace_back([&] {
      auto client =
          KeeperClient::ConnectOrStart(run_dir_.path(), RunDir::KeeperBinary(), Clock::Real());
      if (client) pid = client->Usage()->pid;
    });
  }
  for (auto& thread : threads) thread.join();
  std::set<pid_t> distinct(pids.begin(), pids.end());
  EXPECT_EQ(distinct.size(), 1U) << Log();
  EXPECT_GT(*distinct.begin(), 1);
  std::ifstream lock(run_dir_.path() + "/keeper.lock");
  pid_t written = 0;
  lock >> written;
  EXPECT_EQ(written, *distinct.begin());
}

TEST_F(KeeperTest, RunsInItsOwnSessionWithoutInheritedDescriptors) {
  UniqueFd marker(::open((run_dir_.path() + "/inherited").c_str(), O_CREAT | O_RDWR, 0600));
  pid_t pid = Connect().Usage()->pid;
  EXPECT_EQ(::getsid(pid), ::getpgid(pid));
  EXPECT_NE(::getsid(pid), ::getsid(0));
  std::string proc = "/proc/" + std::to_string(pid);
  for (const auto& each : std::filesystem::directory_iterator(proc + "/fd")) {
    std::error_code error;
    std::string target = std::filesystem::read_symlink(each.path(), error);
    EXPECT_EQ(target.find("/inherited"), std::string::npos);
    EXPECT_EQ(target.find("/dev/pts"), std::string::npos);
  }
  EXPECT_EQ(std::filesystem::read_symlink(proc + "/cwd"), "/");
  std::ifstream score(proc + "/oom_score_adj");
  int value = 0;
  score >> value;
  bool denied = Log().find("oom_score_adj") != std::string::npos;
  EXPECT_EQ(value == -900, !denied);
}

TEST_F(KeeperTest, EndsOnTermAndShutdownAndNotOnHangUp) {
  pid_t pid = Connect().Usage()->pid;
  ASSERT_EQ(::kill(pid, SIGHUP), 0);
  EXPECT_EQ(Connect().Usage()->pid, pid);
  ASSERT_EQ(::kill(pid, SIGTERM), 0);
  EXPECT_TRUE(RunDir::AwaitExit(pid));
  EXPECT_FALSE(std::filesystem::exists(KeeperSocketPath(run_dir_.path())));
  KeeperClient next = Connect();
  pid_t second = next.Usage()->pid;
  EXPECT_NE(second, pid);
  EXPECT_TRUE(next.Shutdown().ok());
  EXPECT_TRUE(RunDir::AwaitExit(second));
  EXPECT_EQ(KeeperClient::Connect(run_dir_.path(), Clock::Real()).error().code(),
            ErrorCode::kNotFound);
}

TEST_F(KeeperTest, ReplacesTheSocketOfAKilledKeeper) {
  KeeperClient client = Connect();
  run_dir_.KillKeeper();
  EXPECT_TRUE(std::filesystem::exists(KeeperSocketPath(run_dir_.path())));
  EXPECT_EQ(client.Usage().error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(client.Usage().error().code(), ErrorCode::kUnavailable) << "later calls fail, too";
  EXPECT_TRUE(Connect().Usage());
}

TEST_F(KeeperTest, CreatesItsSocketAgainAfterItWasDeleted) {
  KeeperClient client = Connect();
  pid_t pid = client.Usage()->pid;
  ASSERT_EQ(::unlink(KeeperSocketPath(run_dir_.path()).c_str()), 0);
  Result<KeeperClient> again = Fail(InternalError("not tried"));
  for (int i = 0; i < 1500 && !again; ++i) {
    Clock::Real().SleepFor(std::chrono::milliseconds(10));
    again = KeeperClient::Connect(run_dir_.path(), Clock::Real());
  }
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ(again->Usage()->pid, pid);
}

TEST_F(KeeperTest, EndsWhenItIsUnreachableForGood) {
  pid_t pid = 0;
  {
    RunDir removed_dir;
    auto client =
        KeeperClient::ConnectOrStart(removed_dir.path(), RunDir::KeeperBinary(), Clock::Real());
    ASSERT_TRUE(client);
    pid = client->Usage()->pid;
    std::filesystem::remove_all(removed_dir.path());
    Clock::Real().SleepFor(std::chrono::milliseconds(2500));
    EXPECT_TRUE(client->Usage()) << "the keeper stays while a client is connected";
  }
  EXPECT_TRUE(RunDir::AwaitExit(pid));
}

TEST_F(KeeperTest, AnErrorNamesWhyItCannotBeStarted) {
  auto missing =
      KeeperClient::ConnectOrStart(run_dir_.path(), "/nowhere/holdfast-keeper", Clock::Real());
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr("install holdfast-keeper"));

  std::string no_program = run_dir_.path() + "/not-a-program";
  std::ofstream(no_program) << "\x7f"
                            << "ELF and nothing";
  ASSERT_EQ(::chmod(no_program.c_str(), 0755), 0);
  auto bad = KeeperClient::ConnectOrStart(run_dir_.path(), no_program, Clock::Real());
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().message(), HasSubstr("Exec format error"));
}

TEST_F(KeeperTest, ItsMemoryIsInNoCoreDump) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_CORE, &before), 0);
  const rlimit raised{before.rlim_max, before.rlim_max};
  ASSERT_GT(raised.rlim_cur, 0U) << "the test sees no change of the limit";
  ASSERT_EQ(::setrlimit(RLIMIT_CORE, &raised), 0);
  KeeperClient client = Connect();
  ::setrlimit(RLIMIT_CORE, &before);
  const auto pid = static_cast<pid_t>(client.Usage()->pid);
  rlimit keepers{};
  ASSERT_EQ(::prlimit(pid, RLIMIT_CORE, nullptr, &keepers), 0);
  EXPECT_EQ(keepers.rlim_cur, 0U);
  std::ifstream filter("/proc/" + std::to_string(pid) + "/coredump_filter");
  std::string text;
  filter >> text;
  EXPECT_EQ(text, "00000000");
}

std::pair<int, std::string> RunKeeper(const std::string& arguments) {
  std::string command = RunDir::KeeperBinary() + " " + arguments + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string output;
  char buffer[512];
  for (size_t n = 0; (n = ::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  int status = ::pclose(pipe);
  return {WEXITSTATUS(status), output};
}

TEST_F(KeeperTest, ItsArgumentsAreChecked) {
  auto [version_code, version] = RunKeeper("--version");
  EXPECT_EQ(version_code, 0);
  EXPECT_THAT(version, HasSubstr("holdfast-keeper 0."));
  EXPECT_THAT(version, HasSubstr("(commit "));
  auto [help_code, help] = RunKeeper("--help");
  EXPECT_EQ(help_code, 0);
  EXPECT_THAT(help, HasSubstr("--run-dir DIR"));
  EXPECT_EQ(RunKeeper("--wrong").first, 64);
  EXPECT_EQ(RunKeeper("--run-dir").first, 64);
  EXPECT_EQ(RunKeeper("--run-dir relative").first, 64);
  EXPECT_EQ(RunKeeper("").first, 64);
  EXPECT_EQ(RunKeeper("--run-dir /r --check-config"),
            (std::pair<int, std::string>(0, "configuration ok\n")));
  EXPECT_EQ(RunKeeper("--run-dir /r --print-config").second, "run_dir = \"/r\"\n");
  auto [code, output] = RunKeeper("--run-dir " + run_dir_.path() + "/none");
  EXPECT_EQ(code, 1);
  EXPECT_THAT(output, HasSubstr("No such file or directory"));
  KeeperClient first = Connect();
  auto [second_code, second] = RunKeeper("--run-dir " + run_dir_.path());
  EXPECT_EQ(second_code, 1);
  EXPECT_THAT(second, HasSubstr("another keeper serves this directory"));
}

}  // namespace
}  // namespace holdfast::agent
