#include "faults/injector/network_cut.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "base/fd.h"
#include "faults/injector/order_book.h"

namespace holdfast::faults {
namespace {
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

CutOrder CutOf(std::vector<std::string> addresses, uint64_t bytes_per_s = 0) {
  return {"drill-1", std::move(addresses), bytes_per_s};
}

TEST(NetworkCutTest, OnlyAddressesOfOtherMachinesAreAccepted) {
  EXPECT_TRUE(CheckCut(CutOf({"10.0.0.7", "fd00::7"})).ok());
  EXPECT_TRUE(CheckCut(CutOf({"10.0.0.7"}, 1'000'000)).ok());
  for (const char* text : {"", "n2", "10.0.0", "10.0.0.7/8", "10.0.0.7, 10.0.0.8", "127.0.0.1",
                           "127.8.8.8", "::1", "0.0.0.0", "::", "224.0.0.1", "255.255.255.255",
                           "ff02::1", "::ffff:10.0.0.7", "10.0.0.7 }; flush ruleset"}) {
    EXPECT_EQ(CheckCut(CutOf({"10.0.0.6", text})).code(), ErrorCode::kInvalidArgument) << text;
  }
  EXPECT_FALSE(CheckCut(CutOf({})).ok());
  EXPECT_TRUE(CheckCut(CutOf(std::vector<std::string>(kCutAddressesMax, "10.0.0.7"))).ok());
  EXPECT_FALSE(CheckCut(CutOf(std::vector<std::string>(kCutAddressesMax + 1, "10.0.0.7"))).ok());
  EXPECT_FALSE(CheckCut(CutOf({"10.0.0.7"}, kCutRateMin - 1)).ok());
  EXPECT_FALSE(CheckCut(CutOf({"10.0.0.7"}, kCutRateMax + 1)).ok());
}

TEST(NetworkCutTest, TheFilterNamesEachAddressOnce) {
  const std::string rules = CutRules(CutOf({"10.0.0.7", "fd00:0::7", "10.0.0.7", "fd00::7"}));
  EXPECT_THAT(rules, HasSubstr("table inet holdfast_drill_drill_1 {"));
  EXPECT_THAT(rules, HasSubstr("elements = { 10.0.0.7 };"));
  EXPECT_THAT(rules, HasSubstr("elements = { fd00::7 };"));
  EXPECT_THAT(rules, Not(HasSubstr("limit")));
  EXPECT_THAT(CutRules(CutOf({"10.0.0.7"}, 500'000)),
              HasSubstr("limit rate over 500000 bytes/second"));
}

/// Each test runs in a new network namespace with one interface and no other machine.
class FilterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // The namespace of this thread: processes that it starts inherit it.
    if (::unshare(CLONE_NEWNET) != 0) {
      GTEST_SKIP() << "this process may not create a network namespace";
    }
    if (!Run("ip link add wire type veth peer name end && ip link set end up && "
             "ip link set wire up && ip link set lo up && "
             "ip addr add 10.9.0.1/24 dev wire") ||
        !Run("nft list tables")) {
      GTEST_SKIP() << "the ip or the nft command is missing";
    }
    folder_ = std::filesystem::temp_directory_path() / ("hfcut" + std::to_string(::getpid()));
  }
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  static bool Run(const std::string& command) {
    return std::system(("{ " + command + "; } >/dev/null 2>&1").c_str()) == 0;
  }
  static bool HasTable() { return Run("nft list tables | grep -q holdfast"); }
  static bool Passes(const char* address, uint16_t port = 9) {
    const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    EXPECT_EQ(::inet_pton(AF_INET, address, &to.sin_addr), 1);
    const ssize_t sent =
        ::sendto(socket.get(), "x", 1, 0, reinterpret_cast<sockaddr*>(&to), sizeof(to));
    EXPECT_TRUE(sent == 1 || errno == EPERM) << errno;
    return sent == 1;
  }
  static bool Await(bool there) {
    for (int i = 0; i < 3000; ++i) {
      if (HasTable() == there) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  }
  Order CutFault() const {
    Order order;
    order.action = Action::kCut;
    order.duration_ms = 600'000;
    order.cut = CutOf({"10.9.0.2"});
    return order;
  }

  std::string folder_;
};

TEST_F(FilterTest, ACutDropsOnlyPacketsToTheOthers) {
  {
    const auto cut = NetworkCut::Make(CutOf({"10.9.0.2", "fd00::2"}));
    ASSERT_TRUE(cut.has_value()) << cut.error().ToString();
    EXPECT_TRUE(HasTable());
    EXPECT_FALSE(Passes("10.9.0.2"));
    EXPECT_TRUE(Passes("10.9.0.3"));
    EXPECT_TRUE(Passes("127.0.0.1"));
  }
  EXPECT_TRUE(Passes("10.9.0.2"));
  EXPECT_FALSE(HasTable());
}

TEST_F(FilterTest, ASlowLinkPassesSomePackets) {
  const auto cut = NetworkCut::Make(CutOf({"10.9.0.2"}, kCutRateMin));
  ASSERT_TRUE(cut.has_value()) << cut.error().ToString();
  EXPECT_TRUE(Passes("10.9.0.2"));
  bool lost = false;
  for (int i = 0; !lost && i < 100'000; ++i) lost = !Passes("10.9.0.2");
  EXPECT_TRUE(lost);
  EXPECT_TRUE(Passes("10.9.0.3"));
}

TEST_F(FilterTest, ARehearsalChecksWithTheKernelAndLeavesNothing) {
  const Status possible = NetworkCut::Rehearse(CutFault().cut);
  EXPECT_TRUE(possible.ok()) << possible.ToString();
  EXPECT_FALSE(HasTable());
}

TEST_F(FilterTest, NothingIsLeftHoweverTheProcessOfACutEnds) {
  const auto book = OrderBook::Open(folder_, Clock::Real(), HOLDFAST_FAULT).value();
  const std::string path = folder_ + "/drill-1.cut";
  ASSERT_TRUE(book->Begin("drill-1", CutFault()).ok());
  ASSERT_TRUE(Await(true));
  EXPECT_FALSE(Passes("10.9.0.2"));
  // The table belongs to another process.
  EXPECT_EQ(NetworkCut::Rehearse(CutFault().cut).code(), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(book->End("drill-1").ok());
  EXPECT_TRUE(Await(false));

  ASSERT_TRUE(book->Begin("drill-1", CutFault()).ok());
  ASSERT_TRUE(Await(true));
  ASSERT_TRUE(SignalProcess(HolderOf(path), SIGKILL).ok());
  EXPECT_TRUE(Await(false));
  EXPECT_TRUE(Passes("10.9.0.2"));
  EXPECT_TRUE(book->End("drill-1").ok());
  EXPECT_FALSE(std::filesystem::exists(path));

  Order brief = CutFault();
  brief.duration_ms = 1;
  ASSERT_TRUE(book->Begin("drill-1", brief).ok());
  // The table may not exist yet: the end of the fault is the end of its order.
  for (int i = 0; i < 3000 && std::filesystem::exists(path); ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(Await(false));
}

}  // namespace
}  // namespace holdfast::faults
