#include "coordinator/api/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/api/channel.h"

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;

struct Good {
  const char* text;
  const char* target;
  const char* listen;
  bool local;
};

TEST(EndpointTest, ReadsEveryForm) {
  const Good cases[] = {
      {"127.0.0.1:7070", "ipv4:127.0.0.1:7070", "127.0.0.1:7070", true},
      {"127.9.0.1:0", "ipv4:127.9.0.1:0", "127.9.0.1:0", true},
      {"[::1]:0", "ipv6:[::1]:0", "[::1]:0", true},
      {"localhost:1", "dns:///localhost:1", "localhost:1", true},
      {"10.0.0.1:7070", "ipv4:10.0.0.1:7070", "10.0.0.1:7070", false},
      {"0.0.0.0:7070", "ipv4:0.0.0.0:7070", "0.0.0.0:7070", false},
      {"[2001:db8::1]:65535", "ipv6:[2001:db8::1]:65535", "[2001:db8::1]:65535", false},
      {"head-node.cluster:7070", "dns:///head-node.cluster:7070", "head-node.cluster:7070", false},
      {"unix:/run/holdfast/c.sock", "unix:/run/holdfast/c.sock", "unix:/run/holdfast/c.sock", true},
  };
  for (const Good& good : cases) {
    auto endpoint = ParseEndpoint(good.text);
    ASSERT_TRUE(endpoint.has_value()) << good.text << ": " << endpoint.error().ToString();
    EXPECT_EQ(endpoint->ToString(), good.text);
    EXPECT_EQ(endpoint->ToGrpcTarget(), good.target);
    EXPECT_EQ(endpoint->ToGrpcListen(), good.listen);
    EXPECT_EQ(endpoint->IsLocal(), good.local) << good.text;
  }
}

TEST(EndpointTest, RefusesBadAddressesWithTheReason) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "no port"},
      {"7070", "no port"},
      {"host:", "port must be a number"},
      {"host:70700", "port must be a number"},
      {"host:-1", "port must be a number"},
      {"host:12x", "port must be a number"},
      {"::1:7070", "needs brackets"},
      {"[nonsense]:1", "is not an IPv6 address"},
      {":7070", "not a valid host name"},
      {"a b:1", "not a valid host name"},
      {"unix:relative", "must be absolute"},
      {"unix:", "must be absolute"},
      {"unix:/" + std::string(107, 'x'), "has 108 bytes, the kernel allows 107"},
  };
  for (const auto& [text, why] : cases) {
    auto endpoint = ParseEndpoint(text);
    ASSERT_FALSE(endpoint.has_value()) << text;
    EXPECT_EQ(endpoint.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(endpoint.error().message(), HasSubstr(why));
  }
  EXPECT_TRUE(ParseEndpoint("unix:/" + std::string(106, 'x')).has_value());
}

TEST(EndpointTest, HostNamesResolveToNumericAddresses) {
  EXPECT_TRUE(NumericAddresses(*ParseEndpoint("unix:/run/c.sock"))->empty());
  EXPECT_EQ(*NumericAddresses(*ParseEndpoint("10.0.0.7:1")), std::vector<std::string>{"10.0.0.7"});
  EXPECT_EQ(*NumericAddresses(*ParseEndpoint("[fd00:0::7]:1")),
            std::vector<std::string>{"fd00::7"});
  const auto local = NumericAddresses(*ParseEndpoint("localhost:1"));
  ASSERT_TRUE(local.has_value()) << local.error().ToString();
  EXPECT_THAT(*local, ::testing::Each(::testing::AnyOf("127.0.0.1", "::1")));
  const auto unknown = NumericAddresses(*ParseEndpoint("no.such.host.invalid:1"));
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().code(), ErrorCode::kUnavailable);
}

TEST(ChannelTest, NonLocalEndpointsNeedTls) {
  Endpoint far = *ParseEndpoint("10.0.0.1:7070");
  auto channel = MakeChannel(far, {});
  ASSERT_FALSE(channel.has_value());
  EXPECT_EQ(channel.error().code(), ErrorCode::kInvalidArgument);
  auto server = MakeServerCredentials(far, {}, "listen");
  ASSERT_FALSE(server.has_value());
  EXPECT_THAT(server.error().message(),
              HasSubstr("listen '10.0.0.1:7070' is reachable from other"));
  EXPECT_THAT(server.error().message(), HasSubstr("set tls.ca, tls.cert and tls.key"));

  auto partial =
      MakeServerCredentials(far, {.ca = "/nonexistent", .cert = "", .key = ""}, "listen");
  ASSERT_FALSE(partial.has_value());
  EXPECT_THAT(partial.error().message(), HasSubstr("all three"));
  auto unreadable =
      MakeServerCredentials(far, {.ca = "/no/ca", .cert = "/no/cert", .key = "/no/key"}, "listen");
  ASSERT_FALSE(unreadable.has_value());
  EXPECT_THAT(unreadable.error().message(), HasSubstr("tls.ca: cannot read '/no/ca'"));

  EXPECT_TRUE(MakeChannel(*ParseEndpoint("127.0.0.1:1"), {}).has_value());
}

}  // namespace
}  // namespace holdfast::coord
