// The stream of a backup: one at a time, complete, and ended when either side ends.
#include "coordinator/server/backups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "coordinator/api/channel.h"
#include "coordinator/api/convert.h"
#include "coordinator/store/backup.h"
#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::coord {
namespace {
using coordinator::BackupPart;
constexpr std::chrono::seconds kTimeout(20);

/// Serves backups and no other call.
class BackupService : public coordinator::Coordinator::CallbackService {
 public:
  explicit BackupService(Backups& backups) : backups_(backups) {}
  Backups::Reactor* Backup(grpc::CallbackServerContext* context,
                           const coordinator::BackupRequest* /*request*/) override {
    return backups_.Send(*context, [this](const Status& outcome) {
      last_ = outcome.code();
      ++ended_;
    });
  }
  int ended() const { return ended_; }
  ErrorCode last() const { return last_; }

 private:
  Backups& backups_;
  std::atomic<int> ended_{0};
  std::atomic<ErrorCode> last_{ErrorCode::kOk};
};

std::vector<KeyValue> Records(size_t count, size_t bytes) {
  std::vector<KeyValue> records;
  for (size_t i = 0; i < count; ++i) {
    records.push_back({"key/" + std::to_string(1000 + i), std::string(bytes, 'a' + i % 26)});
  }
  return records;
}

class BackupsTest : public ::testing::Test {
 protected:
  void Start(Backups::Reader reader) {
    backups_ = std::make_unique<Backups>(std::move(reader), Clock::Real());
    service_ = std::make_unique<BackupService>(*backups_);
    const Endpoint endpoint = ParseEndpoint("unix:" + dir_.path() + "/c.sock").value();
    grpc::ServerBuilder builder;
    builder.AddListeningPort(endpoint.ToString(), grpc::InsecureServerCredentials());
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    stub_ = coordinator::Coordinator::NewStub(MakeChannel(endpoint, {}).value());
  }
  void TearDown() override {
    if (backups_) backups_->Stop();
    if (server_) server_->Shutdown();
  }
  /// Receives a backup. Adds its records to `records`, and its announcement to `announced`.
  grpc::Status Receive(std::vector<KeyValue>* records, BackupCounts* announced = nullptr) {
    grpc::ClientContext context;
    const auto stream = stub_->Backup(&context, {});
    BackupPart part;
    for (bool first = true; stream->Read(&part); first = false) {
      if (first && announced != nullptr) *announced = {part.records(), part.bytes()};
      for (const auto& one : part.entries()) records->push_back({one.key(), one.value()});
    }
    return stream->Finish();
  }
  bool AwaitEnded(int count) {
    const auto until = Clock::Real().Now() + kTimeout;
    while (service_->ended() < count && Clock::Real().Now() < until) {
      Clock::Real().SleepFor(std::chrono::milliseconds(5));
    }
    return service_->ended() == count;
  }

  agent::TempDir dir_;
  std::unique_ptr<Backups> backups_;
  std::unique_ptr<BackupService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<coordinator::Coordinator::Stub> stub_;
};

// Many parts, and a record that is larger than a part.
TEST_F(BackupsTest, AllRecordsArriveInTheirOrder) {
  auto records = Records(700, 10'000);
  records.push_back({"large", std::string(5 << 20, 'z')});
  Start([&] { return records; });
  std::vector<KeyValue> received;
  BackupCounts announced;
  const grpc::Status status = Receive(&received, &announced);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(received == records);
  EXPECT_EQ(announced.records, records.size());
  EXPECT_EQ(announced.bytes, CountOf(records).bytes);
}

TEST_F(BackupsTest, ASecondBackupAtTheSameTimeIsRefused) {
  std::promise<void> begun;
  std::promise<void> go;
  std::atomic<int> reads{0};
  Start([&]() -> Result<std::vector<KeyValue>> {
    if (++reads == 1) {
      begun.set_value();
      go.get_future().wait();
    }
    return Records(3, 10);
  });
  std::vector<KeyValue> first;
  auto running = std::async(std::launch::async, [&] { return Receive(&first); });
  ASSERT_EQ(begun.get_future().wait_for(kTimeout), std::future_status::ready);
  std::vector<KeyValue> second;
  const grpc::Status refused = Receive(&second);
  EXPECT_EQ(FromGrpc(refused, "here").code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error_message(), testing::HasSubstr("another backup is being sent"));
  go.set_value();
  EXPECT_TRUE(running.get().ok());
  EXPECT_EQ(first.size(), 3U);
  EXPECT_TRUE(second.empty());
  EXPECT_TRUE(Receive(&second).ok()) << "the next one is sent";
}

TEST_F(BackupsTest, AReceiverThatEndsMakesRoomForTheNext) {
  Start([&] { return Records(400, 100'000); });  // more than gRPC takes without a reader
  {
    grpc::ClientContext context;
    const auto stream = stub_->Backup(&context, {});
    BackupPart part;
    ASSERT_TRUE(stream->Read(&part));
    context.TryCancel();
    EXPECT_FALSE(stream->Finish().ok());
  }
  ASSERT_TRUE(AwaitEnded(1));
  EXPECT_EQ(service_->last(), ErrorCode::kCancelled);
  std::vector<KeyValue> received;
  EXPECT_TRUE(Receive(&received).ok());
  EXPECT_EQ(received.size(), 400U);
}

// The records are read before the first part is sent, so the store, also an etcd, does not wait for
// the receiver.
TEST_F(BackupsTest, AReceiverThatPausesGetsTheRecordsOfOneMoment) {
  auto records = Records(400, 100'000);  // more than gRPC takes without a reader
  const auto before = records;
  std::atomic<int> reads{0};
  Start([&] {
    ++reads;
    return records;
  });
  grpc::ClientContext context;
  const auto stream = stub_->Backup(&context, {});
  BackupPart part;
  ASSERT_TRUE(stream->Read(&part));
  EXPECT_EQ(part.records(), before.size());
  records = Records(3, 10);  // what the store has later
  Clock::Real().SleepFor(std::chrono::seconds(1));
  EXPECT_EQ(service_->ended(), 0) << "the stream waits for the receiver";
  std::vector<KeyValue> received;
  while (stream->Read(&part)) {
    for (const auto& one : part.entries()) received.push_back({one.key(), one.value()});
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(received == before);
  EXPECT_EQ(reads, 1);
}

TEST_F(BackupsTest, AStopEndsTheBackupInProgress) {
  Start([&] { return Records(400, 100'000); });
  grpc::ClientContext context;
  const auto stream = stub_->Backup(&context, {});
  BackupPart part;
  ASSERT_TRUE(stream->Read(&part));
  backups_->Stop();  // the receiver takes nothing meanwhile
  EXPECT_EQ(service_->ended(), 1);
  EXPECT_EQ(service_->last(), ErrorCode::kUnavailable);
  while (stream->Read(&part)) {
  }
  EXPECT_FALSE(stream->Finish().ok());
  std::vector<KeyValue> received;
  EXPECT_FALSE(Receive(&received).ok()) << "no backup begins after the stop";
}

TEST_F(BackupsTest, AStoreThatCannotBeReadIsTheOutcome) {
  Start([]() -> Result<std::vector<KeyValue>> { return Fail(DataLossError("a bad record")); });
  std::vector<KeyValue> received;
  const grpc::Status status = Receive(&received);
  EXPECT_EQ(FromGrpc(status, "here").code(), ErrorCode::kDataLoss);
  EXPECT_THAT(status.error_message(), testing::HasSubstr("a bad record"));
  EXPECT_TRUE(received.empty());
}

}  // namespace
}  // namespace holdfast::coord
