#include "faults/api/order.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/fd.h"
#include "base/random.h"

namespace holdfast::faults {
namespace {
using ::testing::HasSubstr;

Order FullOrder() {
  Order order;
  order.action = Action::kFill;
  order.start_in_ms = 100;
  order.duration_ms = 3'600'000;
  order.process = {4711, 123'456'789};
  order.starts_again = false;
  order.launch = {"/usr/bin/holdfast-agent",
                  "/",
                  {"holdfast-agent", "--set", "labels=[\"rack=1\"]", ""},
                  {"A=b=c", "NEWLINE=a\nb"},
                  1000,
                  1001,
                  027,
                  {"7 1024 4096"},
                  "/var/log/a b",
                  ""};
  order.endpoint = "unix:/run/holdfast/agent.sock";
  order.node_run_dir = "/run/holdfast";
  order.lost_folder = "/var/lib/holdfast/metadata";
  order.lost_as = "/var/lib/holdfast/metadata.lost-drill-1";
  order.stopped_percent = 50;
  order.files = {"/data0/.probe-1", "/data1/.probe-2"};
  order.cut = {"drill-1", {"10.0.0.7", "fd00::7"}, 1'000'000};
  return order;
}

TEST(OrderTest, EveryFieldSurvivesAFile) {
  EXPECT_EQ(DecodeOrder(EncodeOrder(FullOrder())).value(), FullOrder());
  EXPECT_EQ(DecodeOrder(EncodeOrder(Order())).value(), Order());
  for (const Action action : {Action::kRestart, Action::kStop, Action::kFill, Action::kCut}) {
    Order order;
    order.action = action;
    EXPECT_EQ(DecodeOrder(EncodeOrder(order))->action, action);
  }
}

TEST(OrderTest, ATornOrderIsRefused) {
  const std::string bytes = EncodeOrder(FullOrder());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(DecodeOrder(std::string_view(bytes).substr(0, length)).has_value()) << length;
  }
  EXPECT_FALSE(DecodeOrder(bytes + "x").has_value());
  EXPECT_FALSE(DecodeOrder(bytes + bytes).has_value());
}

TEST(OrderTest, BadEntriesAreNamed) {
  for (const std::string entry : {"action=explode", "pid=x", "pid=1x", "stopped_percent=101",
                                  "starts_again=2", "key=1", "duration_ms", "uid=-1", "umask="}) {
    const auto order = DecodeOrder(entry + '\0' + EncodeOrder(Order()));
    ASSERT_FALSE(order.has_value()) << entry;
    EXPECT_THAT(order.error().message(), HasSubstr(entry)) << entry;
  }
}

class OrderFileTest : public ::testing::Test {
 protected:
  OrderFileTest() { std::filesystem::create_directories(folder_); }
  ~OrderFileTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  const std::string folder_ = std::filesystem::temp_directory_path() / ("hfo" + RandomHex(6));
  const std::string path_ = folder_ + "/drill.stop";
};

TEST_F(OrderFileTest, AnOrderIsNotOverwritten) {
  ASSERT_TRUE(WriteOrder(path_, FullOrder()).ok());
  EXPECT_EQ(WriteOrder(path_, Order()).code(), ErrorCode::kAlreadyExists);
  const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(ReadOrder(file.get()).value(), FullOrder());
  EXPECT_FALSE(std::filesystem::exists(path_ + ".tmp"));
  EXPECT_EQ(std::filesystem::status(path_).permissions() & std::filesystem::perms(077),
            std::filesystem::perms::none)
      << "an order has the environment of a server";
}

TEST_F(OrderFileTest, TheHolderIsAProcessAndEndsWithIt) {
  ASSERT_TRUE(WriteOrder(path_, Order()).ok());
  EXPECT_EQ(HolderOf(path_).pid, 0);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    const char answer = LockOrder(fd).ok() ? 'y' : 'n';
    if (::write(ends[1], &answer, 1) != 1) ::_exit(1);
    ::pause();
  }
  char answer = 0;
  ASSERT_EQ(::read(ends[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_EQ(HolderOf(path_), NameProcess(child));
  {
    const UniqueFd file(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_EQ(LockOrder(file.get()).code(), ErrorCode::kAlreadyExists);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(HolderOf(path_).pid, 0);
  EXPECT_EQ(HolderOf(folder_ + "/absent").pid, 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace holdfast::faults
