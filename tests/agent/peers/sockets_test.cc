#include "agent/peers/sockets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;

TEST(SocketsTest, ListensAndConnects) {
  TempDir dir;
  for (std::string text :
       {std::string("127.0.0.1:0"), std::string("localhost:0"), "unix:" + dir.path() + "/p.sock"}) {
    Endpoint address = *ParseEndpoint(text);
    auto listener = ListenAt(address, Clock::Real());
    ASSERT_TRUE(listener) << listener.error().ToString();
    auto socket = ConnectTo(address, Far(), Clock::Real());
    ASSERT_TRUE(socket) << socket.error().ToString();
    Endpoint same = address;
    const auto second = ListenAt(same, Clock::Real());
    ASSERT_FALSE(second) << text;
    EXPECT_EQ(second.error().code(), ErrorCode::kAlreadyExists) << second.error().ToString();
  }
  struct stat info {};
  ASSERT_EQ(::stat((dir.path() + "/p.sock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U) << "other users have no access";
}

TEST(SocketsTest, AStaleSocketIsReplacedAndAFileIsNot) {
  TempDir dir;
  Endpoint address = *ParseEndpoint("unix:" + dir.path() + "/p.sock");
  { const auto stale = ListenAt(address, Clock::Real()); }
  EXPECT_EQ(ConnectTo(address, Far(), Clock::Real()).error().code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(ListenAt(address, Clock::Real()));
  Endpoint file = *ParseEndpoint("unix:" + dir.Write("data", "precious"));
  const auto refused = ListenAt(file, Clock::Real());
  EXPECT_EQ(refused.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_EQ(std::filesystem::file_size(file.path), 8U);
}

TEST(SocketsTest, AnAddressWithoutAListenerIsUnavailable) {
  TempDir dir;
  EXPECT_EQ(ConnectTo(*ParseEndpoint("unix:" + dir.path() + "/none"), Far(), Clock::Real())
                .error()
                .code(),
            ErrorCode::kUnavailable);
  Endpoint address = *ParseEndpoint("127.0.0.1:0");
  { const auto ended = ListenAt(address, Clock::Real()); }
  const auto socket = ConnectTo(address, Far(), Clock::Real());
  EXPECT_EQ(socket.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(socket.error().message(), HasSubstr(address.ToString()));
}

TEST(SocketsTest, ANameThatDoesNotExistIsUnavailableAndTheDeadlineHolds) {
  // The resolver may answer or hang, depending on the network: the wait ends in time either way.
  const auto start = Clock::Real().Now();
  const auto socket = ConnectTo(*ParseEndpoint("no-such-host.invalid:1"), In(300), Clock::Real());
  ASSERT_FALSE(socket);
  EXPECT_TRUE(socket.error().code() == ErrorCode::kUnavailable ||
              socket.error().code() == ErrorCode::kDeadlineExceeded)
      << socket.error().ToString();
  EXPECT_LT(Clock::Real().Now() - start, std::chrono::seconds(20));
}

TEST(SocketsTest, AListenerThatDoesNotAcceptBlocksNoClient) {
  TempDir dir;
  Endpoint address = *ParseEndpoint("unix:" + dir.path() + "/p.sock");
  const auto listener = ListenAt(address, Clock::Real());
  std::vector<UniqueFd> clients;
  Status status;
  for (int i = 0; i < 10'000 && status.ok(); ++i) {
    auto client = ConnectTo(address, Far(), Clock::Real());
    if (!client) {
      status = client.error();
    } else {
      clients.push_back(*std::move(client));
    }
  }
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
}

TEST(SocketsTest, PollTimesAreRoundedUpAndNeverNegative) {
  EXPECT_EQ(PollMsUntil(Clock::Real().Now() - std::chrono::seconds(1), Clock::Real()), 0);
  EXPECT_GE(PollMsUntil(Clock::Real().Now() + std::chrono::seconds(10), Clock::Real()), 9'000);
  EXPECT_LE(PollMsUntil(Clock::Real().Now() + std::chrono::seconds(10), Clock::Real()), 10'001);
  EXPECT_GT(PollMsUntil(Clock::TimePoint::max(), Clock::Real()), 1'000'000);
}

}  // namespace
}  // namespace holdfast::agent
