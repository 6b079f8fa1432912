#include "coordinator/api/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;

TEST(ChannelTest, GrpcTargetsNameTheKindOfTheAddress) {
  const std::pair<const char*, const char*> cases[] = {
      {"127.0.0.1:7070", "ipv4:127.0.0.1:7070"},
      {"[::1]:0", "ipv6:[::1]:0"},
      {"[2001:db8::1]:65535", "ipv6:[2001:db8::1]:65535"},
      {"localhost:1", "dns:///localhost:1"},
      {"head-node.cluster:7070", "dns:///head-node.cluster:7070"},
      {"unix:/run/holdfast/c.sock", "unix:/run/holdfast/c.sock"},
  };
  for (const auto& [text, target] : cases) EXPECT_EQ(GrpcTarget(*ParseEndpoint(text)), target);
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
