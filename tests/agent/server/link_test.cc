// Tests the agent's connection to a coordinator that the test simulates.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <set>

#include "agent/server/grpc_link.h"
#include "coordinator/api/channel.h"
#include "coordinator/api/convert.h"
#include "tests/agent/pipeline/harness.h"

namespace holdfast::agent {
namespace {
namespace pb = ::holdfast::coordinator;
using ::testing::ElementsAre;

/// Sends the directives of its script on the first Attach, and nothing on later ones.
class ScriptedCoordinator final : public pb::Coordinator::Service {
 public:
  std::vector<pb::Directive> script;
  uint32_t pause_ms = 0;  // in replies to reports

  grpc::Status Attach(grpc::ServerContext* context, const pb::AttachRequest* request,
                      grpc::ServerWriter<pb::Directive>* writer) override {
    bool first = false;
    {
      MutexLock lock(mutex_);
      first = seen_.empty();
      seen_.push_back(request->epoch_seen());
      attached_arena_ = request->arena();
    }
    for (const pb::Directive& directive : script) {
      if (first) writer->Write(directive);
    }
    while (!context->IsCancelled()) ::usleep(2000);
    return grpc::Status::OK;
  }
  /// Refuses the first report that is not empty.
  grpc::Status Report(grpc::ServerContext* /*context*/, const pb::ReportRequest* request,
                      pb::ReportReply* reply) override {
    reply->set_pause_ms(pause_ms);
    MutexLock lock(mutex_);
    reported_arena_ = request->arena();
    if (request->failed_size() == 0) {
      heartbeats_.push_back(std::chrono::steady_clock::now());
      return grpc::Status::OK;
    }
    if (++reports_ == 1) return {grpc::StatusCode::UNAVAILABLE, "not now"};
    for (const auto& one : request->failed()) failed_.push_back(one.why());
    return grpc::Status::OK;
  }
  std::vector<std::chrono::steady_clock::time_point> heartbeats() {
    MutexLock lock(mutex_);
    return heartbeats_;
  }
  std::vector<std::string> failed() {
    MutexLock lock(mutex_);
    return failed_;
  }
  /// The arena in the newest Report, and in the newest Attach.
  pb::ArenaUse reported_arena() {
    MutexLock lock(mutex_);
    return reported_arena_;
  }
  pb::ArenaUse attached_arena() {
    MutexLock lock(mutex_);
    return attached_arena_;
  }
  /// Returns for each Attach the highest epoch that the agent had seen.
  std::vector<uint64_t> seen() {
    MutexLock lock(mutex_);
    return seen_;
  }

 private:
  Mutex mutex_;
  std::vector<uint64_t> seen_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<std::chrono::steady_clock::time_point> heartbeats_ HOLDFAST_GUARDED_BY(mutex_);
  int reports_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  pb::ArenaUse reported_arena_ HOLDFAST_GUARDED_BY(mutex_);
  pb::ArenaUse attached_arena_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<std::string> failed_ HOLDFAST_GUARDED_BY(mutex_);
};

class RecordedDirectives final : public DirectiveHandler {
 public:
  void OnJobState(JobState state) override {
    MutexLock lock(mutex_);
    jobs_.push_back(state.job);
  }
  void OnPrepareShard(PrepareShard prepare) override {
    MutexLock lock(mutex_);
    jobs_.push_back(prepare.identity.job);
  }
  void OnRemoveVersion(RemoveVersion remove) override {
    MutexLock lock(mutex_);
    jobs_.push_back(remove.job);
  }
  std::vector<std::string> jobs() {
    MutexLock lock(mutex_);
    return jobs_;
  }

 private:
  Mutex mutex_;
  std::vector<std::string> jobs_ HOLDFAST_GUARDED_BY(mutex_);
};

pb::Directive DirectiveOf(uint64_t epoch, const std::string& job = "") {
  pb::Directive directive;
  directive.set_epoch(epoch);
  if (!job.empty()) {
    JobState state;
    state.job = job;
    state.incarnation = Incarnation{1};
    coord::ToProto(state, directive.mutable_job());
  }
  return directive;
}

class LinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = (std::filesystem::temp_directory_path() / "hf-link-XXXXXX").string();
    ASSERT_NE(::mkdtemp(dir_.data()), nullptr);
    endpoint_ = *ParseEndpoint("unix:" + dir_ + "/c.sock");
  }
  void TearDown() override {
    if (link_ != nullptr) link_->Stop();
    if (server_ != nullptr) server_->Shutdown(gpr_inf_past(GPR_CLOCK_REALTIME));
    std::filesystem::remove_all(dir_);
  }
  void Start() {
    if (server_ != nullptr) server_.reset();
    guarded_ =
        coord::GuardedService::Make(coordinator_, coordinator::Coordinator::service_full_name(),
                                    "test", {}, Clock::Real())
            .value();
    auto server = coord::StartServer(*guarded_, endpoint_, {}, "listen", 1 << 20);
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = *std::move(server);
    GrpcLinkOptions options;
    options.cluster = "test";
    options.node = "n0";
    options.agent_start = 1;
    options.heartbeat_ms = 20;
    options.disk_free_percent = [] { return 50U; };
    options.arena_use = [this] {
      return ArenaUse{.bytes = 4 << 20, .reserved_bytes = reserved_.load()};
    };
    link_ = std::make_unique<GrpcCoordinatorLink>(
        options, *coord::LeaderChannel::Make(endpoint_.ToString(), {}), Clock::Real());
    link_->Start(recorded_, "unix:" + dir_ + "/d.sock");
  }

  std::string dir_;
  Endpoint endpoint_;
  std::atomic<uint64_t> reserved_{1 << 20};
  ScriptedCoordinator coordinator_;
  std::unique_ptr<coord::GuardedService> guarded_;
  std::unique_ptr<coord::ApiServer> server_;
  RecordedDirectives recorded_;
  std::unique_ptr<GrpcCoordinatorLink> link_;
};

TEST_F(LinkTest, DirectivesOfAnOlderEpochAreNotObeyed) {
  coordinator_.script = {DirectiveOf(5), DirectiveOf(5, "now"), DirectiveOf(4, "before"),
                         DirectiveOf(5, "behind")};
  Start();
  // The agent closes the stream at the first directive of the older epoch, and then reports the
  // epoch that it has seen.
  ASSERT_TRUE(Eventually([&] { return coordinator_.seen().size() >= 2; }));
  EXPECT_THAT(recorded_.jobs(), ElementsAre("now"));
  EXPECT_EQ(coordinator_.seen()[0], 0U);
  EXPECT_EQ(coordinator_.seen()[1], 5U);
}

TEST_F(LinkTest, TheContentOfAFailedReportIsSentAgain) {
  coordinator_.script = {DirectiveOf(5)};
  Start();
  // A failed replica is in no inventory: only a repeated report can deliver it.
  const ShardKey key{"job", {Incarnation{1}, Step{3}}, Rank{0}};
  link_->Report(FailedReplica{key, Tier::kDisk, "the disk is full"});
  EXPECT_TRUE(Eventually([&] { return !coordinator_.failed().empty(); }));
  EXPECT_THAT(coordinator_.failed(), ElementsAre("the disk is full"));
}

TEST_F(LinkTest, AttachesAndHeartbeatsHaveTheArena) {
  coordinator_.script = {DirectiveOf(5)};
  Start();
  ASSERT_TRUE(Eventually([&] { return coordinator_.attached_arena().bytes() == 4 << 20; }));
  EXPECT_EQ(coordinator_.attached_arena().reserved_bytes(), 1U << 20);
  reserved_ = 3 << 20;
  EXPECT_TRUE(
      Eventually([&] { return coordinator_.reported_arena().reserved_bytes() == 3 << 20; }));
  EXPECT_EQ(coordinator_.reported_arena().bytes(), 4U << 20);
}

TEST_F(LinkTest, HeartbeatsAreAsRareAsTheCoordinatorAsks) {
  coordinator_.script = {DirectiveOf(5)};
  coordinator_.pause_ms = 300;
  Start();
  ASSERT_TRUE(Eventually([&] { return coordinator_.heartbeats().size() >= 3; }));
  const auto at = coordinator_.heartbeats();
  // The first reply asks for the pause. Only a lower limit is certain on a busy machine.
  EXPECT_GE(at[1] - at[0], std::chrono::milliseconds(299));
  EXPECT_GE(at[2] - at[1], std::chrono::milliseconds(299));
  // What there is to report does not wait.
  const ShardKey key{"job", {Incarnation{1}, Step{3}}, Rank{0}};
  link_->Report(FailedReplica{key, Tier::kDisk, "the disk is full"});
  EXPECT_TRUE(Eventually([&] { return !coordinator_.failed().empty(); }));
}

TEST_F(LinkTest, DirectivesOfANewerEpochAreObeyed) {
  coordinator_.script = {DirectiveOf(5), DirectiveOf(5, "a"), DirectiveOf(6, "b"),
                         DirectiveOf(6, "c")};
  Start();
  EXPECT_TRUE(Eventually([&] { return recorded_.jobs().size() == 3; }));
  EXPECT_THAT(recorded_.jobs(), ElementsAre("a", "b", "c"));
}

}  // namespace
}  // namespace holdfast::agent
