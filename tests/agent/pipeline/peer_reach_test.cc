#include "agent/pipeline/peer_reach.h"

#include <gmock/gmock.h>

#include "agent/peers/address.h"
#include "agent/peers/tcp_server.h"
#include "agent/peers/tcp_transport.h"
#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::agent {
namespace {
using ::testing::IsEmpty;

/// Of four nodes: this one, one that serves, one that is gone, and one that takes connections and
/// says nothing, as behind a cut link.
TEST(PeerReach, WhoAnswersIsReachedWhateverTheAnswer) {
  TempDir dir;
  TestSource source;
  TcpPeerServerOptions serves;
  serves.cluster = "test";
  serves.node = "n1";
  serves.listen = "unix:" + dir.path() + "/n1.sock";
  auto server = TcpPeerServer::Start(serves, source);
  ASSERT_TRUE(server) << server.error().ToString();
  auto there = ParsePeerAddress("unix:" + dir.path() + "/n3.sock");
  ASSERT_TRUE(there) << there.error().ToString();
  auto silent = ListenAt(*there);
  ASSERT_TRUE(silent) << silent.error().ToString();
  TcpTransportOptions options;
  options.cluster = "test";
  options.node = "n0";
  auto transport = MakeTcpTransport(options);
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
  EXPECT_THAT(reach.Wonder("gpt"), IsEmpty()) << "there is nobody to ask";
  reach.SetGroup("gpt", *group);
  std::vector<PeerAnswer> answers;
  for (int i = 0; i < 500 && answers.empty(); ++i) {
    answers = reach.Wonder("gpt");
    Clock::Real().SleepFor(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(answers, (std::vector<PeerAnswer>{{"n1", true}, {"n2", false}, {"n3", false}}));
  reach.SetGroup("gpt", std::nullopt);
  EXPECT_THAT(reach.Wonder("gpt"), IsEmpty());
}

}  // namespace
}  // namespace holdfast::agent
