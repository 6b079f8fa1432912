#include "base/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast {
namespace {
using ::testing::HasSubstr;

TEST(EndpointTest, ReadsEveryForm) {
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
    const auto endpoint = ParseEndpoint(text);
    ASSERT_TRUE(endpoint.has_value()) << text << ": " << endpoint.error().ToString();
    EXPECT_EQ(endpoint->ToString(), text);
    EXPECT_EQ(endpoint->IsLocal(), local) << text;
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
      {std::string("unix:/a\0b", 9), "NUL"},
      {"unix:/" + std::string(107, 'x'), "has 108 bytes, the kernel allows 107"},
  };
  for (const auto& [text, why] : cases) {
    const auto endpoint = ParseEndpoint(text);
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

}  // namespace
}  // namespace holdfast
