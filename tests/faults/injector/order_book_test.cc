// The orders in force, with the real program: who undoes a fault when processes are killed.

#include "faults/injector/order_book.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "agent/api/socket.h"
#include "base/fd.h"
#include "base/random.h"
#include "faults/injector/servers.h"

namespace holdfast::faults {
namespace {
namespace fs = std::filesystem;
using ::testing::HasSubstr;

bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 3000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

/// A process that sleeps, killed and reaped by the destructor.
class Sleeper {
 public:
  Sleeper() : pid_(::fork()) {
    if (pid_ == 0) {
      ::execl("/bin/sleep", "sleep", "600", nullptr);
      ::_exit(127);
    }
  }
  ~Sleeper() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  ProcessName name() const { return NameProcess(pid_); }
  char state() const { return StatOf(pid_).value_or(ProcessStat{}).state; }

 private:
  const pid_t pid_;
};

class OrderBookTest : public ::testing::Test {
 protected:
  OrderBookTest() { book_ = OrderBook::Open(folder_, Clock::Real(), HOLDFAST_FAULT).value(); }
  ~OrderBookTest() override {
    EXPECT_TRUE(book_->End("d").ok());
    EXPECT_TRUE(fs::is_empty(folder_));
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  Order StopOf(const Sleeper& sleeper, int64_t duration_ms) const {
    Order order;
    order.action = Action::kStop;
    order.process = sleeper.name();
    order.duration_ms = duration_ms;
    return order;
  }
  std::string PathOf(const char* action) const { return folder_ + "/d." + action; }

  const std::string folder_ = fs::temp_directory_path() / ("hfb" + RandomHex(6));
  std::unique_ptr<OrderBook> book_;
};

TEST_F(OrderBookTest, AFaultEndsAtItsTimeWithoutTheInjector) {
  const Sleeper trainer;
  ASSERT_TRUE(book_->Begin("d", StopOf(trainer, 700)).ok());
  EXPECT_TRUE(Eventually([&] { return trainer.state() == 'T'; }));
  EXPECT_TRUE(Eventually([&] { return trainer.state() != 'T'; }));
  EXPECT_TRUE(Eventually([&] { return !fs::exists(PathOf("stop")); }));
}

TEST_F(OrderBookTest, AnEndRequestUndoesAFaultAtOnce) {
  const Sleeper trainer;
  ASSERT_TRUE(book_->Begin("d", StopOf(trainer, 600'000)).ok());
  EXPECT_TRUE(Eventually([&] { return trainer.state() == 'T'; }));
  EXPECT_TRUE(book_->End("another").ok());
  EXPECT_EQ(trainer.state(), 'T');
  EXPECT_TRUE(book_->End("d").ok());
  EXPECT_NE(trainer.state(), 'T');
}

TEST_F(OrderBookTest, TheWatchdogUndoesTheFaultOfAKilledProcess) {
  const Sleeper trainer;
  ASSERT_TRUE(book_->Begin("d", StopOf(trainer, 600'000)).ok());
  EXPECT_TRUE(Eventually([&] { return trainer.state() == 'T'; }));
  ASSERT_TRUE(SignalProcess(HolderOf(PathOf("stop")), SIGKILL).ok());
  EXPECT_TRUE(Eventually([&] {
    book_->Watch();
    return trainer.state() != 'T';
  }));
  EXPECT_TRUE(Eventually([&] { return !fs::exists(PathOf("stop")); }));
}

/// Its process is killed between the beginning of the fault and the answer to `Begin`.
TEST_F(OrderBookTest, AFaultThatFailsAfterItBeganIsUndone) {
  const Sleeper trainer;
  const std::string program = folder_ + "-program";
  std::ofstream(program) << fmt::format(
      "#!/bin/sh\n"
      "if [ \"$1\" = --undo ]; then exec {0} \"$@\"; fi\n"
      "{0} \"$@\" &\n"
      "until grep -q '^State:.T' /proc/{1}/status; do sleep 0.01; done\n"
      "kill -9 $!\n"
      "exit 1\n",
      HOLDFAST_FAULT, trainer.name().pid);
  fs::permissions(program, fs::perms::owner_all);
  book_ = OrderBook::Open(folder_, Clock::Real(), program).value();
  EXPECT_EQ(book_->Begin("d", StopOf(trainer, 600'000)).code(), ErrorCode::kInternal);
  EXPECT_TRUE(Eventually([&] {
    book_->Watch();
    return trainer.state() != 'T';
  }));
  EXPECT_TRUE(Eventually([&] { return !fs::exists(PathOf("stop")); }));
  fs::remove(program);
}

TEST_F(OrderBookTest, TheNextInjectorUndoesWhatAKilledOneLeft) {
  const Sleeper trainer;
  Order fill;
  fill.action = Action::kFill;
  fill.files = {folder_ + "-filler"};
  // What is left when the injector and its processes are killed: a file without a lock.
  ASSERT_TRUE(WriteOrder(PathOf("stop"), StopOf(trainer, 600'000)).ok());
  ASSERT_TRUE(WriteOrder(PathOf("fill"), fill).ok());
  std::ofstream(fill.files[0]) << "x";
  ASSERT_TRUE(SignalProcess(trainer.name(), SIGSTOP).ok());
  EXPECT_TRUE(Eventually([&] { return trainer.state() == 'T'; }));
  book_ = OrderBook::Open(folder_, Clock::Real(), HOLDFAST_FAULT).value();
  book_->Watch();
  EXPECT_TRUE(Eventually([&] { return trainer.state() != 'T'; }));
  EXPECT_TRUE(Eventually([&] { return !fs::exists(fill.files[0]); }));
  EXPECT_TRUE(Eventually([&] { return fs::is_empty(folder_); }));
}

TEST_F(OrderBookTest, ATornOrderIsRemoved) {
  std::ofstream(PathOf("stop")) << "action=st";
  book_->Watch();
  EXPECT_TRUE(Eventually([&] { return fs::is_empty(folder_); }));
}

TEST_F(OrderBookTest, OneDrillIsInForceAtATime) {
  const Sleeper first;
  const Sleeper second;
  ASSERT_TRUE(book_->Begin("d", StopOf(first, 600'000)).ok());
  const Status other = book_->Begin("e", StopOf(second, 600'000));
  EXPECT_EQ(other.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(other.message(), HasSubstr("another drill (d)"));
  EXPECT_EQ(book_->Begin("d", StopOf(second, 600'000)).code(), ErrorCode::kAlreadyExists);
  EXPECT_NE(second.state(), 'T');
  // The same drill may have another fault on the machine: a node and the coordinator.
  Order fill;
  fill.action = Action::kFill;
  EXPECT_TRUE(book_->Begin("d", fill).ok());
  EXPECT_TRUE(book_->End("d").ok());
  EXPECT_TRUE(book_->CheckFree("e").ok());
}

TEST_F(OrderBookTest, AProcessThatEndsDuringItsFaultIsNoError) {
  auto trainer = std::make_unique<Sleeper>();
  ASSERT_TRUE(book_->Begin("d", StopOf(*trainer, 600'000)).ok());
  EXPECT_TRUE(Eventually([&] { return trainer->state() == 'T'; }));
  trainer.reset();
  EXPECT_TRUE(Eventually([&] { return !fs::exists(PathOf("stop")); }));
}

TEST_F(OrderBookTest, AKilledServerStartsAgainAsItWasStarted) {
  const std::string out = folder_ + "-out";
  // Only the first server stays.
  const std::string script = "echo started $0 $1 $KEY $(umask) in $(pwd) >>" + out +
                             "; test $(wc -l <" + out + ") -gt 1 || exec sleep 600";
  const pid_t server = ::fork();
  if (server == 0) {
    const char* environment[] = {"KEY=value", "PATH=/bin:/usr/bin", nullptr};
    if (::chdir("/usr") != 0) ::_exit(126);
    ::execle("/bin/sh", "sh", "-c", script.c_str(), "zero", "one", nullptr, environment);
    ::_exit(127);
  }
  const auto lines = [&] {
    std::ifstream file(out);
    std::vector<std::string> read;
    for (std::string line; std::getline(file, line);) read.push_back(line);
    return read;
  };
  ASSERT_TRUE(Eventually([&] { return lines().size() == 1; }));
  Order order;
  order.duration_ms = 1;
  order.endpoint = "unix:" + folder_ + "-absent.sock";
  order.process = NameProcess(server);
  // The shell has become `sleep 600`; its own arguments start it again with the same environment.
  order.launch = LaunchOf(order.process).value();
  EXPECT_THAT(order.launch.environment, ::testing::Contains("KEY=value"));
  EXPECT_EQ(order.launch.folder, "/usr");
  EXPECT_EQ(order.launch.uid, ::geteuid());
  EXPECT_FALSE(order.launch.limits.empty());
  order.launch.program = "/bin/sh";
  order.launch.arguments = {"sh", "-c", script, "zero", "one"};
  order.launch.umask = 027;
  order.lost_folder = folder_ + "-store";
  order.lost_as = folder_ + "-store.lost-d";
  fs::create_directory(order.lost_folder);
  ASSERT_TRUE(book_->Begin("d", order).ok());
  EXPECT_TRUE(Eventually([&] { return lines().size() == 2; }));
  EXPECT_FALSE(fs::exists(order.lost_folder));
  EXPECT_TRUE(fs::remove(order.lost_as)) << "the folder was renamed before the start";
  ::waitpid(server, nullptr, 0);
  ASSERT_EQ(lines().size(), 2U);
  EXPECT_EQ(lines()[1], "started zero one value 0027 in /usr");
  EXPECT_TRUE(Eventually([&] { return !fs::exists(PathOf("restart")); }));

  // The process that carried out the order was killed before it started the server again.
  ASSERT_TRUE(WriteOrder(PathOf("restart"), order).ok());
  book_->Watch();
  EXPECT_TRUE(Eventually([&] { return lines().size() == 3; }));
  EXPECT_TRUE(Eventually([&] { return !fs::exists(PathOf("restart")); }));
  // A service manager starts the server again.
  order.starts_again = false;
  ASSERT_TRUE(WriteOrder(PathOf("restart"), order).ok());
  book_->Watch();
  EXPECT_TRUE(Eventually([&] { return !fs::exists(PathOf("restart")); }));
  EXPECT_EQ(lines().size(), 3U);
  fs::remove(out);
}

TEST(ServersTest, TheListenerOfASocketIsFound) {
  const std::string folder = fs::temp_directory_path() / ("hfs" + RandomHex(6));
  fs::create_directories(folder);
  const std::string self = fs::read_symlink("/proc/self/exe").filename();
  EXPECT_FALSE(ServerAt("unix:" + folder + "/agent.sock", self).has_value());
  const auto socket = agent::ListenUnix(folder + "/agent.sock", 0600, Clock::Real());
  ASSERT_TRUE(socket.has_value());
  EXPECT_EQ(ServerAt("unix:" + folder + "/agent.sock", self)->pid, ::getpid());
  // Another program that listens there is not killed.
  EXPECT_EQ(ServerAt("unix:" + folder + "/agent.sock", "holdfast-agent").error().code(),
            ErrorCode::kNotFound);
  fs::remove_all(folder);

  const UniqueFd tcp(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  ASSERT_EQ(::bind(tcp.get(), reinterpret_cast<sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(::getsockname(tcp.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  const std::string at = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  EXPECT_FALSE(ServerAt(at, self).has_value()) << "it does not listen yet";
  ASSERT_EQ(::listen(tcp.get(), 1), 0);
  EXPECT_EQ(ServerAt(at, self)->pid, ::getpid());
  EXPECT_FALSE(ServerAt(at, "holdfast-coordinator").has_value());
}

}  // namespace
}  // namespace holdfast::faults
