// What the coordinator takes from the messages of agents, before an event is made of them.

#include "coordinator/server/requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "coordinator/contract/limits.h"

namespace holdfast::coord {
namespace {
namespace pb = coordinator;
using ::testing::HasSubstr;

pb::AttachRequest Attach() {
  pb::AttachRequest request;
  request.set_cluster("atlas");
  request.set_node("n1");
  request.set_agent_start(1);
  request.set_data_address("unix:/n1");
  return request;
}

void AddCommit(uint64_t step, pb::AttachRequest* request) {
  pb::VersionCommit* commit = request->add_commits();
  commit->set_job("lm");
  commit->set_life(7);
  commit->mutable_version()->set_incarnation(1);
  commit->mutable_version()->set_step(step);
  commit->set_world(2);
  commit->set_digest(100 + step);
}

TEST(ReadAttach, ListsAtMost4096Commits) {
  pb::AttachRequest request = Attach();
  for (uint64_t step = 1; step <= 4096; ++step) AddCommit(step, &request);
  auto event = ReadAttach(request, "atlas");
  ASSERT_TRUE(event.has_value()) << event.error().ToString();
  ASSERT_EQ(event->commits.size(), 4096U);
  EXPECT_EQ(event->commits.back(),
            (VersionCommit{"lm", LifeId{7}, {Incarnation{1}, Step{4096}}, 2, 4196}));
  // An agent that lists more attaches: the commits are evidence, and the node is needed.
  AddCommit(4097, &request);
  event = ReadAttach(request, "atlas");
  ASSERT_TRUE(event.has_value()) << event.error().ToString();
  EXPECT_EQ(event->commits.size(), 4096U);
  EXPECT_EQ(event->commits.back().version.step, Step{4096});
}

TEST(ReadAttach, RefusesACommitThatProvesNothing) {
  pb::AttachRequest request = Attach();
  AddCommit(1, &request);
  request.mutable_commits(0)->set_digest(0);
  EXPECT_EQ(ReadAttach(request, "atlas").error().code(), ErrorCode::kInvalidArgument);
  request.mutable_commits(0)->set_digest(5);
  request.mutable_commits(0)->set_world(0);
  EXPECT_EQ(ReadAttach(request, "atlas").error().code(), ErrorCode::kInvalidArgument);
}

TEST(ReadAttach, RefusesAnotherCluster) {
  const auto event = ReadAttach(Attach(), "borealis");
  EXPECT_EQ(event.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(event.error().message(), HasSubstr("serves 'borealis'"));
}

}  // namespace
}  // namespace holdfast::coord
