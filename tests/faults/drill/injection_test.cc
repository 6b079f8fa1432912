#include "faults/drill/injection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::faults {
namespace {
using ::testing::HasSubstr;
using ::testing::Not;

TEST(InjectorAddressesTest, InjectorsListenNextToTheirServers) {
  const auto addresses = InjectorAddresses::Parse({}, "").value();
  EXPECT_EQ(addresses.OfNode("n1", "10.0.0.1:40123"), "10.0.0.1:7079");
  EXPECT_EQ(addresses.OfNode("n1", "[fd00::1]:40123"), "[fd00::1]:7079");
  EXPECT_EQ(addresses.OfNode("n1", "unix:/run/n1/d.sock"), "unix:/run/n1/fault.sock");
  EXPECT_EQ(addresses.OfCoordinator("coordinator.example:7070"), "coordinator.example:7079");
  EXPECT_EQ(addresses.OfCoordinator("unix:/c.sock"), "unix:/fault.sock");
}

TEST(InjectorAddressesTest, GivenAddressesTakePrecedence) {
  const auto addresses =
      InjectorAddresses::Parse({"n1=10.0.0.9:7100", "n2=unix:/x/f.sock"}, "10.0.0.8:1").value();
  EXPECT_EQ(addresses.OfNode("n1", "10.0.0.1:40123"), "10.0.0.9:7100");
  EXPECT_EQ(addresses.OfNode("n2", "10.0.0.2:40123"), "unix:/x/f.sock");
  EXPECT_EQ(addresses.OfNode("n3", "10.0.0.3:40123"), "10.0.0.3:7079");
  EXPECT_EQ(addresses.OfCoordinator("unix:/c.sock"), "10.0.0.8:1");
}

TEST(InjectorAddressesTest, BadAddressesAreExplained) {
  for (const char* text : {"n1", "=10.0.0.1:1", "n1=", "n1=10.0.0.1:99999", "../n=10.0.0.1:1"}) {
    EXPECT_FALSE(InjectorAddresses::Parse({text}, "").has_value()) << text;
  }
  EXPECT_THAT(InjectorAddresses::Parse({"n1"}, "").error().message(),
              HasSubstr("n1=10.0.0.1:7079"));
  EXPECT_FALSE(InjectorAddresses::Parse({"n1=[::1]:1", "n1=[::1]:2"}, "").has_value());
  EXPECT_FALSE(InjectorAddresses::Parse({}, "nowhere:port").has_value());
}

TEST(InjectionTest, MachinesWithoutAnInjectorAreAllNamed) {
  cli::GlobalOptions options;
  options.endpoint = "unix:/nonexistent/c/c.sock";
  const auto addresses = InjectorAddresses::Parse({"n3=unix:/nonexistent/f.sock"}, "").value();
  const Injection injection(options, addresses, Clock::Real());
  DrillPlan plan;
  plan.kind = DrillKind::kPowerLoss;
  plan.nodes = {"n1", "n3"};
  plan.agents = {{"n1", "unix:/nonexistent/n1/d.sock"},
                 {"n2", "unix:/nonexistent/n2/d.sock"},
                 {"n3", "unix:/nonexistent/n3/d.sock"}};
  plan.coordinator = true;
  const auto what = injection.Rehearse(plan);
  ASSERT_FALSE(what.has_value());
  EXPECT_EQ(what.error().code(), ErrorCode::kUnavailable);
  const std::string& message = what.error().message();
  EXPECT_THAT(message, HasSubstr("the coordinator's machine (unix:/nonexistent/c/fault.sock)"));
  EXPECT_THAT(message, HasSubstr("node n1 (unix:/nonexistent/n1/fault.sock)"));
  EXPECT_THAT(message, HasSubstr("node n3 (unix:/nonexistent/f.sock)"));
  EXPECT_THAT(message, Not(HasSubstr("n2")));
  EXPECT_THAT(message, HasSubstr("holdfast-drills"));
}

}  // namespace
}  // namespace holdfast::faults
