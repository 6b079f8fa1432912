#include "agent/peers/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;

TEST(PeerAddressTest, ReadsEveryForm) {
  const std::pair<const char*, bool> cases[] = {
      {"127.0.0.1:7072", true},
      {"127.9.0.1:0", true},
      {"[::1]:0", true},
      {"localhost:1", true},
      {"10.0.0.1:7072", false},
      {"0.0.0.0:7072", false},
      {"[::]:1", false},
      {"[2001:db8::1]:65535", false},
      {"node-7.rack_1:7072", false},
      {"localhost.evil.example:1", false},
      {"unix:/run/holdfast/p.sock", true},
  };
  for (const auto& [text, local] : cases) {
    const auto address = ParsePeerAddress(text);
    ASSERT_TRUE(address) << text << ": " << address.error().ToString();
    EXPECT_EQ(address->ToString(), text);
    EXPECT_EQ(address->IsLocal(), local) << text;
  }
}

TEST(PeerAddressTest, RefusesWithTheReason) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "no port"},
      {"7072", "no port"},
      {"host:", "port must be a number"},
      {"host:70720", "port must be a number"},
      {"host:-1", "port must be a number"},
      {"host:12x", "port must be a number"},
      {"::1:7072", "needs brackets"},
      {"[nonsense]:1", "is not an IPv6 address"},
      {":7072", "not a valid name"},
      {"a b:1", "not a valid name"},
      {"unix:relative", "must be absolute"},
      {"unix:", "must be absolute"},
      {std::string("unix:/a\0b", 9), "NUL"},
      {"unix:/" + std::string(107, 'x'), "has 108 bytes, the kernel allows 107"},
  };
  for (const auto& [text, why] : cases) {
    const auto address = ParsePeerAddress(text);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(address.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(address.error().message(), HasSubstr(why));
  }
  EXPECT_TRUE(ParsePeerAddress("unix:/" + std::string(106, 'x')));
}

TEST(PeerAddressTest, ListensAndConnects) {
  TempDir dir;
  for (std::string text :
       {std::string("127.0.0.1:0"), std::string("localhost:0"), "unix:" + dir.path() + "/p.sock"}) {
    PeerAddress address = *ParsePeerAddress(text);
    auto listener = ListenAt(address);
    ASSERT_TRUE(listener) << listener.error().ToString();
    auto socket = ConnectTo(address, Far());
    ASSERT_TRUE(socket) << socket.error().ToString();
    PeerAddress same = address;
    const auto second = ListenAt(same);
    ASSERT_FALSE(second) << text;
    EXPECT_EQ(second.error().code(), ErrorCode::kAlreadyExists) << second.error().ToString();
  }
  struct stat info {};
  ASSERT_EQ(::stat((dir.path() + "/p.sock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U) << "other users have no access";
}

TEST(PeerAddressTest, AStaleSocketIsReplacedAndAFileIsNot) {
  TempDir dir;
  PeerAddress address = *ParsePeerAddress("unix:" + dir.path() + "/p.sock");
  { const auto stale = ListenAt(address); }
  EXPECT_EQ(ConnectTo(address, Far()).error().code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(ListenAt(address));
  PeerAddress file = *ParsePeerAddress("unix:" + dir.Write("data", "precious"));
  const auto refused = ListenAt(file);
  EXPECT_EQ(refused.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_EQ(std::filesystem::file_size(file.path), 8U);
}

TEST(PeerAddressTest, AnAddressWithoutAListenerIsUnavailable) {
  TempDir dir;
  EXPECT_EQ(ConnectTo(*ParsePeerAddress("unix:" + dir.path() + "/none"), Far()).error().code(),
            ErrorCode::kUnavailable);
  PeerAddress address = *ParsePeerAddress("127.0.0.1:0");
  { const auto ended = ListenAt(address); }
  const auto socket = ConnectTo(address, Far());
  EXPECT_EQ(socket.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(socket.error().message(), HasSubstr(address.ToString()));
}

TEST(PeerAddressTest, ANameThatDoesNotExistIsUnavailableAndTheDeadlineHolds) {
  // The resolver may answer or hang, depending on the network: the wait ends in time either way.
  const auto start = Clock::Real().Now();
  const auto socket = ConnectTo(*ParsePeerAddress("no-such-host.invalid:1"), In(300));
  ASSERT_FALSE(socket);
  EXPECT_TRUE(socket.error().code() == ErrorCode::kUnavailable ||
              socket.error().code() == ErrorCode::kDeadlineExceeded)
      << socket.error().ToString();
  EXPECT_LT(Clock::Real().Now() - start, std::chrono::seconds(20));
}

TEST(PeerAddressTest, AListenerThatDoesNotAcceptBlocksNoClient) {
  TempDir dir;
  PeerAddress address = *ParsePeerAddress("unix:" + dir.path() + "/p.sock");
  const auto listener = ListenAt(address);
  std::vector<UniqueFd> clients;
  Status status;
  for (int i = 0; i < 10'000 && status.ok(); ++i) {
    auto client = ConnectTo(address, Far());
    if (!client) {
      status = client.error();
    } else {
      clients.push_back(*std::move(client));
    }
  }
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
}

TEST(PeerAddressTest, PollTimesAreRoundedUpAndNeverNegative) {
  EXPECT_EQ(PollMsUntil(Clock::Real().Now() - std::chrono::seconds(1)), 0);
  EXPECT_GE(PollMsUntil(Clock::Real().Now() + std::chrono::seconds(10)), 9'000);
  EXPECT_LE(PollMsUntil(Clock::Real().Now() + std::chrono::seconds(10)), 10'001);
  EXPECT_GT(PollMsUntil(Clock::TimePoint::max()), 1'000'000);
}

}  // namespace
}  // namespace holdfast::agent
