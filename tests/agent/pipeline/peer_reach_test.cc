#include "agent/pipeline/peer_reach.h"

#include <gmock/gmock.h>

#include "agent/peers/sockets.h"
#include "agent/peers/tcp_server.h"
#include "agent/peers/tcp_transport.h"
#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::agent {
namespace {
using ::testing::IsEmpty;

/// Of four nodes, one is this node, one serves, one is down, and one accepts connections and never
/// answers, as behind a cut link.
TEST(PeerReach, APeerThatAnswersIsReachableWhateverTheAnswer) {
  TempDir dir;
  TestSource source;
  TcpPeerServerOptions serves;
  serves.cluster = "test";
  serves.node = "n1";
  serves.listen = "unix:" + dir.path() + "/n1.sock";
  auto server = TcpPeerServer::Start(serves, source, Clock::Real());
  ASSERT_TRUE(server) << server.error().ToString();
  auto silent_address = ParseEndpoint("unix:" + dir.path() + "/n3.sock");
  ASSERT_TRUE(silent_address) << silent_address.error().ToString();
  auto silent = ListenAt(*silent_address, Clock::Real());
  ASSERT_TRUE(silent) << silent.error().ToString();
  TcpTransportOptions options;
  options.cluster = "test";
  options.node = "n0";
  auto transport = MakeTcpTransport(options, Clock::Real());
  ASSERT_TRUE(transport) << transport.error().ToString();

  std::vector<PlanMember> members(4);
  for (uint32_t i = 0; i < 4; ++i) {
    members[i].node = "n" + std::to_string(i);
    members[i].address = "unix:" + dir.path() + "/" + members[i].node + ".sock";
    members[i].number = i;
    members[i].ranks = {{Rank{i}, 4096}};
  }
  auto group = GroupPlan::Make(members, 1);
  ASSERT_TRUE(group) << group.error().ToString();

  PeerReach reach(**transport, "n0", Clock::Real());
  EXPECT_THAT(reach.RequestProbes("gpt"), IsEmpty()) << "no group is known";
  reach.SetGroup("gpt", *group);
  std::vector<PeerProbe> probes;
  for (int i = 0; i < 500 && probes.empty(); ++i) {
    probes = reach.RequestProbes("gpt");
    Clock::Real().SleepFor(std::chrono::milliseconds(10));
  }
  ASSERT_EQ(probes.size(), 3U);
  EXPECT_EQ(probes[0].node, "n1");
  EXPECT_TRUE(probes[0].reached);
  EXPECT_GT(probes[0].took_ns, 0U);
  EXPECT_EQ(probes[1].node, "n2");
  EXPECT_FALSE(probes[1].reached);
  EXPECT_EQ(probes[1].took_ns, 0U) << "refused at once: no measurement of the link";
  EXPECT_EQ(probes[2].node, "n3");
  EXPECT_FALSE(probes[2].reached);
  EXPECT_GE(probes[2].took_ns, 1'000'000'000U) << "the timeout";
  reach.SetGroup("gpt", std::nullopt);
  EXPECT_THAT(reach.RequestProbes("gpt"), IsEmpty());
}

}  // namespace
}  // namespace holdfast::agent
