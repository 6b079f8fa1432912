// A coordinator that violates an invariant: it stores nothing more and still answers queries.

#include <gmock/gmock.h>

#include <future>

#include "coordinator/server/coordinator_server.h"
#include "coordinator/store/memory_store.h"
#include "tests/base/metrics/scrape.h"
#include "tests/coordinator/server/fake_agent.h"
#include "tests/coordinator/server/server_fixture.h"

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;
using ::testing::StartsWith;

class InvariantTest : public ServerFixture {
 protected:
  void SetUp() override {
    ServerFixture::SetUp();
    config_.metrics.listen = "127.0.0.1:0";
  }
  /// Stores version 1-5 of the job "gpt" with a tier that is committed and failed at once. No
  /// coordinator makes such a record, and the next write of it is a violation.
  void StoreContradiction() {
    auto catalog = Catalog::Open(std::make_unique<MemoryStore>(data_), "test").value();
    JobRecord job;
    job.job = "gpt";
    job.uid = 7;
    job.incarnation = Incarnation{1};
    const LineageRecord lineage{"gpt", Incarnation{1}, "run-1", 1, Decision::kFresh, {}};
    VersionRecord version;
    version.job = "gpt";
    version.version = V(1, 5);
    version.world = 1;
    version.phase = Phase::kCommitted;
    version.tiers = version.failed_tiers = TierBit(Tier::kDisk);
    version.digests = {7};
    ASSERT_TRUE(
        catalog->Write(std::vector<Effect>{PutJob{job}, PutLineage{lineage}, PutVersion{version}})
            .ok());
  }
  void Start() {
    auto server = CoordinatorServer::Start(
        config_,
        [this]() -> Result<std::unique_ptr<MetaStore>> {
          return std::make_unique<MemoryStore>(data_);
        },
        Clock::Real());
    ASSERT_TRUE(server.has_value()) << server.error().ToString();
    server_ = *std::move(server);
    stub_ = coordinator::Coordinator::NewStub(*MakeChannel(server_->endpoint(), {}));
  }
  /// Pins version 1-5, which writes its record.
  grpc::Status Pin() {
    grpc::ClientContext context;
    coordinator::PinRequest request;
    request.set_job("gpt");
    ToProto(V(1, 5), request.mutable_version());
    request.set_pinned(true);
    coordinator::PinReply reply;
    return stub_->Pin(&context, request, &reply);
  }
  coordinator::GetStatusReply GetStatus() {
    grpc::ClientContext context;
    coordinator::GetStatusReply reply;
    const grpc::Status status = stub_->GetStatus(&context, {}, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  /// Waits until the queries show that the applier has stopped. Until then they are refused.
  bool AwaitStopped() {
    return Eventually([&] {
      grpc::ClientContext context;
      coordinator::GetStatusReply reply;
      return stub_->GetStatus(&context, {}, &reply).ok() && !reply.stopped_why().empty();
    });
  }
  coordinator::ListVersionsReply ListVersions() {
    grpc::ClientContext context;
    coordinator::ListVersionsRequest request;
    request.set_job("gpt");
    coordinator::ListVersionsReply reply;
    EXPECT_TRUE(stub_->ListVersions(&context, request, &reply).ok());
    return reply;
  }
  std::string Health() { return HttpGet(server_->metrics_address(), "/health"); }

  MemoryStoreData data_;
  std::unique_ptr<coordinator::Coordinator::Stub> stub_;
};

TEST_F(InvariantTest, AViolationStopsTheApplierAndKeepsTheQueries) {
  StoreContradiction();
  Start();
  FakeAgent a(server_->endpoint(), "a");
  a.Attach();
  ASSERT_TRUE(Eventually([&] { return GetStatus().nodes_size() == 1; }));
  EXPECT_THAT(Health(), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(GetStatus().stopped_why(), "");
  const MemoryStoreData before = data_;

  testing::internal::CaptureStderr();
  const grpc::Status pin = Pin();
  const std::string log = testing::internal::GetCapturedStderr();

  EXPECT_EQ(pin.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(log, HasSubstr("InvariantViolated component=coordinator at=coordinator/state/"));
  EXPECT_THAT(log, HasSubstr("ApplierStopped"));
  EXPECT_EQ(data_, before) << "the batch with the violation was not stored";
  ASSERT_TRUE(AwaitStopped());
  EXPECT_THAT(GetStatus().stopped_why(), HasSubstr("record.failed_tiers"));
  EXPECT_EQ(GetStatus().epoch(), server_->epoch().value);
  ASSERT_EQ(ListVersions().versions_size(), 1);
  EXPECT_EQ(ListVersions().versions(0).state(), "committed");
  EXPECT_FALSE(ListVersions().versions(0).pinned()) << "only what the store has is shown";

  const Scrape page(server_->metrics_address());
  EXPECT_GE(page.Value("holdfast_invariant_violations_total").value_or(0), 1);
  EXPECT_EQ(page.Value("holdfast_coordinator_loaded"), 0);
  EXPECT_THAT(Health(), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(Health(), HasSubstr("invariant violated: coordinator: "));

  // Nothing else is applied, and no agent stays attached.
  EXPECT_TRUE(Eventually([&] { return a.End().has_value(); }));
  EXPECT_EQ(a.Join("gpt", "run-2", 0, 1).error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(Pin().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(data_, before);
  // The applier's thread still reports to the watchdog.
  std::promise<void> alive;
  server_->AfterNextBatch([&] { alive.set_value(); });
  EXPECT_EQ(alive.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST_F(InvariantTest, ANewProcessServesWhatWasCommitted) {
  StoreContradiction();
  Start();
  EXPECT_EQ(Pin().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(AwaitStopped());
  server_.reset();
  Start();
  EXPECT_EQ(GetStatus().stopped_why(), "");
  FakeAgent a(server_->endpoint(), "a");
  a.Attach();
  ASSERT_TRUE(Eventually([&] { return GetStatus().nodes_size() == 1; }));
  EXPECT_TRUE(a.Join("gpt", "run-2", 0, 1).has_value());
  EXPECT_EQ(ListVersions().versions_size(), 1);
}

TEST_F(InvariantTest, AnEpochThatGoesBackStopsTheCoordinator) {
  Start();
  server_.reset();
  Start();
  ASSERT_GT(server_->epoch().value, 1U);
  FakeAgent a(server_->endpoint(), "a");
  a.Attach();
  ASSERT_TRUE(Eventually([&] { return GetStatus().nodes_size() == 1; }));
  const uint64_t before = InvariantViolations();
  // The next write finds another epoch and fails. The coordinator then loads this older store, and
  // would take an epoch that agents have seen already.
  data_.clear();
  EXPECT_FALSE(a.Join("gpt", "run-1", 0, 1).has_value());
  EXPECT_TRUE(Eventually([&] { return InvariantViolations() > before; }));
  EXPECT_FALSE(a.Join("gpt", "run-1", 0, 1).has_value());
  EXPECT_THAT(Health(), StartsWith("HTTP/1.1 503"));
}

}  // namespace
}  // namespace holdfast::coord
