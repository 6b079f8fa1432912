// Real coordinators and relays in one process, with agents of the tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <vector>

#include "coordinator/contract/pace.h"
#include "coordinator/relay/relay_server.h"
#include "tests/coordinator/server/fake_agent.h"
#include "tests/coordinator/server/server_fixture.h"

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;

class RelayTest : public ServerFixture {
 protected:
  Endpoint Relay(int number) const {
    return ParseEndpoint("unix:" + dir_ + "/r" + std::to_string(number) + ".sock").value();
  }
  void StartRelay(int number = 0, const std::string& upstream = "") {
    relay::RelayOptions options;
    options.cluster = "test";
    options.listen = Relay(number).ToString();
    options.upstream = upstream.empty() ? config_.listen : upstream;
    auto started = relay::RelayServer::Start(options, Clock::Real());
    ASSERT_TRUE(started.has_value()) << started.error().ToString();
    relays_.push_back(*std::move(started));
  }
  void TearDown() override {
    agents_.clear();
    relays_.clear();
    ServerFixture::TearDown();
  }
  FakeAgent& AddAgent(const Endpoint& endpoint, int node, uint64_t start = 1) {
    agents_.push_back(std::make_unique<FakeAgent>(endpoint, "n" + std::to_string(node), start));
    agents_.back()->peer_address = "unix:/tmp/p" + std::to_string(node);
    agents_.back()->slot_bytes = 1 << 20;
    return *agents_.back();
  }
  /// Attaches until it succeeds, as agents do: the relay may have no session yet.
  void AttachAll() {
    for (auto& agent : agents_) {
      ASSERT_TRUE(Eventually([&] {
        if (agent->End() || agent->Directives().empty()) {
          if (agent->End()) agent->Detach();
          if (!agent->End()) agent->Attach();
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
        return !agent->Directives().empty() && !agent->End();
      }));
    }
  }
  uint64_t Epoch() { return server_->epoch().value; }

  std::vector<std::unique_ptr<relay::RelayServer>> relays_;
  std::vector<std::unique_ptr<FakeAgent>> agents_;
};

// Three nodes with two ranks each, over two relays and one without: versions are committed with
// the same records as without any relay.
TEST_F(RelayTest, ReportsJoinsAndDirectivesPassThroughRelays) {
  Start();
  StartRelay(0);
  StartRelay(1);
  AddAgent(Relay(0), 0);
  AddAgent(Relay(1), 1);
  AddAgent(server_->endpoint(), 2);
  AttachAll();
  for (uint32_t rank = 0; rank < 6; ++rank) {
    auto joined = agents_[rank / 2]->Join("lm", "r1", rank, 6);
    ASSERT_TRUE(joined.has_value()) << joined.error().ToString();
    EXPECT_EQ(*joined, 1U);
  }
  for (uint64_t step = 1; step <= 3; ++step) {
    for (uint32_t node = 0; node < 3; ++node) {
      const Status held = agents_[node]->Hold(
          Epoch(), {MakeReplica("lm", V(1, step), 2 * node, 6, Tier::kMemory),
                    MakeReplica("lm", V(1, step), 2 * node + 1, 6, Tier::kMemory)});
      ASSERT_TRUE(held.ok()) << held.ToString();
    }
    for (auto& agent : agents_) {
      EXPECT_TRUE(Eventually([&] {
        return agent->StateOf("lm").committed[Tier::kMemory] == V(1, step);
      })) << agent->node();
    }
  }
  // All nodes have the same state, with the parity group, although relays send it once.
  const JobState direct = agents_[2]->StateOf("lm");
  ASSERT_TRUE(direct.group.has_value());
  EXPECT_EQ(direct.group->members().size(), 3U);
  for (auto& agent : agents_) {
    EXPECT_TRUE(Eventually([&] { return agent->StateOf("lm") == direct; })) << agent->node();
  }
  const pb::ListVersionsReply versions = agents_[2]->ListVersions("lm");
  ASSERT_GE(versions.versions_size(), 1);
  EXPECT_EQ(FromProto(versions.versions(0).version()), V(1, 3));
  // The deadline of a call that is passed on applies at the coordinator, too.
  const auto decided = agents_[0]->Decide("lm", 1, 0, 300);
  ASSERT_FALSE(decided.has_value());
  EXPECT_EQ(decided.error().code(), ErrorCode::kDeadlineExceeded);
}

TEST_F(RelayTest, AnswersHaveThePausesThatTheCoordinatorAsksFor) {
  Start();
  StartRelay(0);
  AddAgent(Relay(0), 0);
  AttachAll();
  auto stub = pb::Coordinator::NewStub(*MakeChannel(Relay(0), {}));
  grpc::ClientContext reporting;
  pb::ReportReply reported;
  ASSERT_TRUE(stub->Report(&reporting, agents_[0]->NewReport(Epoch()), &reported).ok());
  EXPECT_EQ(reported.pause_ms(), kHeartbeatPause.count());
  pb::ObserveRequest observation;
  observation.set_node("n0");
  observation.set_agent_start(1);
  grpc::ClientContext observing;
  pb::ObserveReply observed;
  ASSERT_TRUE(stub->Observe(&observing, observation, &observed).ok());
  EXPECT_EQ(observed.pause_ms(), TelemetryPause(1).count());
}

TEST_F(RelayTest, TheEndOfAStreamAndOfARelayDetachTheirNodes) {
  config_.node_lease_ms = 400;
  Start();
  StartRelay(0);
  AddAgent(Relay(0), 0);
  AddAgent(Relay(0), 1);
  FakeAgent direct(server_->endpoint(), "n2");
  AttachAll();
  const auto alive = [&] {
    int count = 0;
    const pb::GetStatusReply status = direct.GetStatus();
    for (const auto& node : status.nodes()) count += node.alive();
    return count;
  };
  const auto heartbeat = [&](int agent) {
    EXPECT_TRUE(agents_[agent]->Report(agents_[agent]->NewReport(Epoch())).ok());
  };
  EXPECT_EQ(alive(), 2);
  agents_[0]->Detach();
  EXPECT_TRUE(Eventually([&] {
    heartbeat(1);
    return alive() == 1;
  }));
  relays_.clear();
  EXPECT_TRUE(Eventually([&] { return alive() == 0; }));
  // The other relay takes them at once.
  StartRelay(1);
  agents_.clear();
  AddAgent(Relay(1), 0);
  AddAgent(Relay(1), 1);
  AttachAll();
  EXPECT_EQ(alive(), 2);
}

// A relay that was stopped may bring a report after the agent attached elsewhere.
TEST_F(RelayTest, AReportOfAnEarlierStreamIsRefused) {
  Start();
  StartRelay(0);
  FakeAgent& first = AddAgent(Relay(0), 0);
  AttachAll();
  ASSERT_TRUE(first.Join("lm", "r1", 0, 1).has_value());
  FakeAgent second(server_->endpoint(), "n0");
  second.Attach();
  ASSERT_TRUE(Eventually([&] { return !second.Directives().empty(); }));
  ASSERT_TRUE(Eventually([&] { return first.End().has_value(); }));
  const Status late = first.Hold(Epoch(), {MakeReplica("lm", V(1, 1), 0, 1, Tier::kMemory)});
  EXPECT_EQ(late.code(), ErrorCode::kFenced) << late.ToString();
  EXPECT_EQ(second.ListVersions("lm").versions_size(), 0);
}

TEST_F(RelayTest, AnAgentThatIsNotAttachedHereAttachesAgain) {
  Start();
  StartRelay(0);
  AddAgent(Relay(0), 0);
  AttachAll();
  FakeAgent other(Relay(0), "n0", /*agent_start=*/2);
  const Status refused = other.Report(other.NewReport(Epoch()));
  EXPECT_EQ(refused.code(), ErrorCode::kFenced);
  EXPECT_THAT(refused.message(), HasSubstr("attach again"));
}

// A new coordinator has no inventory: every agent attaches again, and stays with its relay.
TEST_F(RelayTest, ANewCoordinatorGetsEveryInventoryAgain) {
  Start();
  StartRelay(0);
  for (int node = 0; node < 20; ++node) AddAgent(Relay(0), node);
  AttachAll();
  for (uint32_t node = 0; node < 20; ++node) {
    ASSERT_TRUE(agents_[node]->Join("lm", "r1", node, 20).has_value());
  }
  for (uint32_t node = 0; node < 20; ++node) {
    ASSERT_TRUE(
        agents_[node]->Hold(Epoch(), {MakeReplica("lm", V(1, 1), node, 20, Tier::kMemory)}).ok());
  }
  const uint64_t before = Epoch();
  Start();
  EXPECT_GT(Epoch(), before);
  for (auto& agent : agents_) EXPECT_TRUE(Eventually([&] { return agent->End().has_value(); }));
  AttachAll();
  for (uint32_t node = 0; node < 20; ++node) {
    ASSERT_TRUE(
        agents_[node]->Hold(Epoch(), {MakeReplica("lm", V(1, 2), node, 20, Tier::kMemory)}).ok());
  }
  EXPECT_TRUE(
      Eventually([&] { return agents_[0]->StateOf("lm").committed[Tier::kMemory] == V(1, 2); }));
  FakeAgent direct(server_->endpoint(), "x");
  const pb::ListVersionsReply versions = direct.ListVersions("lm");
  ASSERT_GE(versions.versions_size(), 1);
  EXPECT_EQ(FromProto(versions.versions(0).version()), V(1, 2));
}

TEST_F(RelayTest, OtherCallsNameTheLeader) {
  Start();
  StartRelay(0);
  AddAgent(Relay(0), 0);
  AttachAll();
  const auto stub = pb::Coordinator::NewStub(MakeChannel(Relay(0), {}).value());
  grpc::ClientContext context;
  pb::PinRequest request;
  pb::PinReply reply;
  const grpc::Status refused = stub->Pin(&context, request, &reply);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(refused.error_message(), HasSubstr(config_.listen));
  const auto hint = context.GetServerTrailingMetadata().find(kLeaderMetadata);
  ASSERT_NE(hint, context.GetServerTrailingMetadata().end());
  EXPECT_EQ(std::string(hint->second.data(), hint->second.size()), config_.listen);
  // Agents ask for the epoch before they attach.
  EXPECT_EQ(agents_[0]->GetStatus("-").epoch(), Epoch());
  // A list with both is followed.
  auto list = LeaderChannel::Make(Relay(0).ToString() + "," + config_.listen, {}).value();
  grpc::ClientContext again;
  ASSERT_FALSE(list->stub().Pin(&again, request, &reply).ok());
  list->Follow(0, again);
  EXPECT_EQ(list->address(list->current()), config_.listen);
}

TEST_F(RelayTest, ARelayOfARelayIsRefused) {
  Start();
  StartRelay(0);
  const auto stub = pb::Relays::NewStub(MakeChannel(Relay(0), {}).value());
  grpc::ClientContext context;
  pb::OpenRelayRequest request;
  request.set_cluster("test");
  const auto reader = stub->Open(&context, request);
  pb::RelayDown down;
  EXPECT_FALSE(reader->Read(&down));
  const grpc::Status refused = reader->Finish();
  EXPECT_THAT(refused.error_message(), HasSubstr("is a relay"));
  EXPECT_THAT(refused.error_message(), HasSubstr("names coordinators"));
}

TEST_F(RelayTest, ARelayOfAnotherClusterIsRefused) {
  Start();
  const auto stub = pb::Relays::NewStub(MakeChannel(server_->endpoint(), {}).value());
  grpc::ClientContext context;
  pb::OpenRelayRequest request;
  request.set_cluster("other");
  const auto reader = stub->Open(&context, request);
  pb::RelayDown down;
  EXPECT_FALSE(reader->Read(&down));
  EXPECT_THAT(reader->Finish().error_message(), HasSubstr("cluster 'other'"));
}

/// A session of the test itself.
class RawSession {
 public:
  explicit RawSession(const Endpoint& endpoint)
      : channel_(MakeChannel(endpoint, {}).value()), stub_(pb::Relays::NewStub(channel_)) {
    pb::OpenRelayRequest request;
    request.set_cluster("test");
    request.set_relay("unix:/tmp/raw");
    reader_ = stub_->Open(&context_, request);
    pb::RelayDown down;
    if (reader_->Read(&down)) session_ = down.session();
  }
  ~RawSession() {
    context_.TryCancel();
    pb::RelayDown down;
    while (reader_->Read(&down)) {
    }
    reader_->Finish();
  }
  pb::ForwardRequest Batch(uint64_t number) const {
    pb::ForwardRequest batch;
    batch.set_session(session_);
    batch.set_number(number);
    return batch;
  }
  Status Forward(const pb::ForwardRequest& batch) {
    grpc::ClientContext context;
    pb::ForwardReply reply;
    const grpc::Status sent = stub_->Forward(&context, batch, &reply);
    return sent.ok() ? FromProto(reply.outcome()) : FromGrpc(sent, "coordinator");
  }
  pb::RelayDown Read() {
    pb::RelayDown down;
    reader_->Read(&down);
    return down;
  }
  uint64_t session() const { return session_; }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<pb::Relays::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<pb::RelayDown>> reader_;
  uint64_t session_ = 0;
};

TEST_F(RelayTest, ABatchThatIsRepeatedIsCarriedOutOnce) {
  Start();
  RawSession raw(server_->endpoint());
  ASSERT_NE(raw.session(), 0U);
  pb::ForwardRequest batch = raw.Batch(1);
  pb::RelayItem* item = batch.add_items();
  item->set_link(7);
  pb::AttachRequest* attach = item->mutable_attach();
  attach->set_cluster("test");
  attach->set_node("n0");
  attach->set_agent_start(1);
  attach->set_data_address("unix:/tmp/d");
  ASSERT_TRUE(raw.Forward(batch).ok());
  const pb::RelayDown down = raw.Read();
  ASSERT_EQ(down.directives_size(), 1);
  EXPECT_EQ(down.directives(0).links(0), 7U);
  ASSERT_TRUE(raw.Forward(batch).ok());
  // A second attach would end the link of the first. The answer to a report comes first otherwise.
  pb::ForwardRequest report = raw.Batch(2);
  report.add_items()->set_link(7);
  report.mutable_items(0)->set_call(1);
  report.mutable_items(0)->mutable_report()->set_node("n0");
  report.mutable_items(0)->mutable_report()->set_agent_start(1);
  report.mutable_items(0)->mutable_report()->set_epoch(Epoch());
  ASSERT_TRUE(raw.Forward(report).ok());
  const pb::RelayDown answer = raw.Read();
  EXPECT_EQ(answer.ends_size(), 0);
  ASSERT_EQ(answer.done_size(), 1);
  EXPECT_EQ(answer.done(0), 1U);
}

TEST_F(RelayTest, DamagedBatchesAreRefused) {
  Start();
  RawSession raw(server_->endpoint());
  pb::ForwardRequest other = raw.Batch(1);
  other.set_session(raw.session() + 2);
  EXPECT_EQ(raw.Forward(other).code(), ErrorCode::kNotFound);
  pb::ForwardRequest lists = raw.Batch(1);
  lists.add_folded()->add_items(0);
  EXPECT_THAT(raw.Forward(lists).message(), HasSubstr("different lengths"));
  pb::ForwardRequest rank = raw.Batch(1);
  pb::FoldedReplicas* folded = rank.add_folded();
  folded->set_job("lm");
  folded->set_world(1);
  folded->mutable_version()->set_incarnation(1);
  folded->add_items(0);
  folded->add_ranks(5);
  folded->add_digests(1);
  folded->add_image_bytes(1);
  EXPECT_EQ(raw.Forward(rank).code(), ErrorCode::kInvalidArgument);
  // A report of a node that is not attached through the session is refused alone.
  pb::ForwardRequest report = raw.Batch(1);
  report.add_items()->set_link(9);
  report.mutable_items(0)->set_call(3);
  report.mutable_items(0)->mutable_report()->set_node("n9");
  ASSERT_TRUE(raw.Forward(report).ok());
  const pb::RelayDown down = raw.Read();
  ASSERT_EQ(down.answers_size(), 1);
  EXPECT_EQ(down.answers(0).report().outcome().code(), static_cast<uint32_t>(ErrorCode::kFenced));
}

TEST(RelayConfigTest, BadUpstreamsAreExplained) {
  relay::RelayOptions options;
  options.cluster = "test";
  options.listen = "unix:/tmp/r.sock";
  EXPECT_THAT(relay::CheckRelay(options).message(), HasSubstr("needs upstream"));
  options.upstream = "unix:/tmp/c.sock,unix:/tmp/r.sock";
  EXPECT_THAT(relay::CheckRelay(options).message(), HasSubstr("names this relay itself"));
  options.upstream = "unix:/tmp/c.sock";
  EXPECT_TRUE(relay::CheckRelay(options).ok());
  options.advertise = "unix:/tmp/c.sock";
  EXPECT_THAT(relay::CheckRelay(options).message(), HasSubstr("names this relay itself"));
  options.upstream = "not an address";
  EXPECT_THAT(relay::CheckRelay(options).message(), HasSubstr("upstream"));
}

}  // namespace
}  // namespace holdfast::coord
