// The audit log: what it records, that records are durable and bounded, and that a call which
// cannot be recorded is not carried out.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "coordinator/api/convert.h"
#include "coordinator/server/audit_log.h"
#include "coordinator/server/coordinator_server.h"
#include "coordinator/store/memory_store.h"
#include "tests/agent/peers/peers_test_util.h"

namespace holdfast::coord {
namespace {
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

/// Files of this process can grow to `bytes` only, as on a full disk, until the end of the scope.
class FullDisk {
 public:
  explicit FullDisk(uint64_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &now), 0);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
};

class AuditLogTest : public ::testing::Test {
 protected:
  std::unique_ptr<AuditLog> Open(uint64_t file_bytes_max = 1 << 20, uint32_t files_max = 3) {
    return AuditLog::Open({path_, file_bytes_max, files_max}, clock_).value();
  }
  static AuditRecord Record(const std::string& who) {
    return {"Pin", who, "unix:/c", R"({"job":"lm"})", "begun", 0};
  }

  agent::TempDir dir_;
  const std::string path_ = dir_.path() + "/data/audit.log";
  const Clock& clock_ = Clock::Real();
};

TEST_F(AuditLogTest, RecordsSurviveAndNumbersContinue) {
  EXPECT_EQ(Open()->Append(Record("a")).value(), 1U);
  auto log = Open();
  EXPECT_EQ(log->Append(Record("b")).value(), 2U);
  struct stat file {};
  ASSERT_EQ(::stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600U);
  const AuditPage page = log->Read(0, 0, 1 << 20).value();
  ASSERT_EQ(page.lines.size(), 2U);
  EXPECT_EQ(page.last, 2U);
  const auto first = nlohmann::json::parse(page.lines[0]);
  EXPECT_EQ(first["who"], "a");
  EXPECT_EQ(first["from"], "unix:/c");
  EXPECT_EQ(first["what"]["job"], "lm");
  EXPECT_EQ(first["method"], "Pin");
}

TEST_F(AuditLogTest, FilesAreBoundedAndTheNewestRecordsStay) {
  auto log = Open(2000, 3);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(log->Append(Record("user " + std::to_string(i))));
  uint64_t bytes = 0;
  int files = 0;
  for (const auto& entry : fs::directory_iterator(dir_.path() + "/data")) {
    bytes += entry.file_size();
    ++files;
  }
  EXPECT_EQ(files, 3);
  EXPECT_LE(bytes, 6000U);
  log = Open(2000, 3);
  EXPECT_EQ(log->Append(Record("x")).value(), 101U);
  const AuditPage page = log->Read(0, 0, 1 << 20).value();
  EXPECT_GE(page.lines.size(), 15U);
  for (size_t i = 0; i < page.lines.size(); ++i) {
    EXPECT_EQ(nlohmann::json::parse(page.lines[i])["number"], 102 - page.lines.size() + i);
  }
}

TEST_F(AuditLogTest, PagesHaveEveryRecordOnce) {
  auto log = Open();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(log->Append(Record("u")));
  uint64_t after = 0;
  int pages = 0;
  for (bool more = true; more; ++pages) {
    const AuditPage page = log->Read(0, after, 700).value();
    EXPECT_EQ(nlohmann::json::parse(page.lines.at(0))["number"], after + 1);
    after = page.last;
    more = page.more;
  }
  EXPECT_EQ(after, 20U);
  EXPECT_GT(pages, 3);
  EXPECT_TRUE(log->Read(clock_.WallNanos() + 1'000'000'000, 0, 700)->lines.empty());
}

TEST_F(AuditLogTest, ATornRecordIsRemoved) {
  ASSERT_TRUE(Open()->Append(Record("a")));
  const std::string whole = TextOf(path_);
  std::ofstream(path_, std::ios::app) << R"({"number":2,"who":"tor)";
  auto log = Open();
  EXPECT_EQ(TextOf(path_), whole);
  EXPECT_EQ(log->Append(Record("b")).value(), 2U);
}

TEST_F(AuditLogTest, AFullDiskLeavesNoPartOfARecord) {
  auto log = Open();
  ASSERT_TRUE(log->Append(Record("a")));
  const std::string before = TextOf(path_);
  {
    const FullDisk full(before.size() + 10);
    EXPECT_FALSE(log->Append(Record("b")));
  }
  EXPECT_EQ(TextOf(path_), before);
  EXPECT_EQ(log->Append(Record("c")).value(), 2U);
}

TEST_F(AuditLogTest, LargeAndForeignTextsAreRecords) {
  auto log = Open();
  AuditRecord record = Record("caf\xe9\n\"");
  record.what.assign(1 << 20, 'x');
  ASSERT_TRUE(log->Append(record));
  record.what = "no json {";
  ASSERT_TRUE(log->Append(record));
  const AuditPage page = log->Read(0, 0, 1 << 24).value();
  ASSERT_EQ(page.lines.size(), 2U);
  EXPECT_LT(page.lines[0].size(), 10'000U);
  EXPECT_EQ(nlohmann::json::parse(page.lines[1])["what"], "no json {");
}

TEST_F(AuditLogTest, ASymbolicLinkIsRefused) {
  fs::create_directories(dir_.path() + "/data");
  fs::create_symlink(dir_.path() + "/elsewhere", path_);
  EXPECT_FALSE(AuditLog::Open({path_}, clock_));
}

/// A coordinator with its store in memory: only the audit log writes files.
class AuditTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CoordinatorConfig config;
    config.cluster = "test";
    config.listen = "unix:" + dir_.path() + "/c.sock";
    config.data_dir = dir_.path() + "/data";
    auto opener = [this]() -> Result<std::unique_ptr<MetaStore>> {
      return std::unique_ptr<MetaStore>(std::make_unique<MemoryStore>(data_));
    };
    server_ = CoordinatorServer::Start(config, opener, Clock::Real()).value();
    stub_ = coordinator::Coordinator::NewStub(MakeChannel(server_->endpoint(), {}).value());
  }
  template <typename Reply, typename Request, typename Method>
  Status Send(Method method, const Request& request) {
    Reply reply;
    grpc::ClientContext context;
    const grpc::Status sent = (stub_.get()->*method)(&context, request, &reply);
    return sent.ok() ? FromProto(reply.outcome()) : FromGrpc(sent, "coordinator");
  }
  Status Quarantine(const std::string& why) {
    coordinator::QuarantineRequest request;
    request.set_node("n1");
    request.set_why(why);
    request.set_set(true);
    return Send<coordinator::QuarantineReply>(&Stub::Quarantine, request);
  }
  static coordinator::RunSpec Spec() {
    coordinator::RunSpec spec;
    spec.set_job("lm");
    spec.add_command("/bin/true");
    spec.set_directory("/");
    spec.set_nodes(1);
    spec.set_ranks_per_node(1);
    return spec;
  }
  std::vector<nlohmann::json> Records() {
    coordinator::GetAuditReply reply;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->GetAudit(&context, {}, &reply).ok());
    std::vector<nlohmann::json> records;
    for (const std::string& line : reply.lines()) records.push_back(nlohmann::json::parse(line));
    return records;
  }

  using Stub = coordinator::Coordinator::Stub;
  agent::TempDir dir_;
  MemoryStoreData data_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<Stub> stub_;
};

TEST_F(AuditTest, EveryMutationIsRecordedWithItsOutcome) {
  namespace c = coordinator;
  c::PinRequest pin;
  pin.set_job("lm");
  pin.set_pinned(true);
  c::RecordVerificationRequest verification;
  verification.set_job("lm");
  verification.mutable_verification()->set_ok(1);
  c::RetainRequest retain;
  retain.set_job("lm");
  c::ForgetJobRequest forget;
  forget.set_job("lm");
  c::StartRunRequest start;
  *start.mutable_spec() = Spec();
  start.mutable_spec()->add_environment("TOKEN=very-secret");
  c::StopRunRequest stop;
  stop.set_job("lm2");
  c::AcknowledgeIncidentRequest acknowledge;
  acknowledge.set_id(7);
  c::AdoptRequest adopt;
  adopt.set_life(5);
  const std::vector<std::pair<std::string, Status>> calls = {
      {"Pin", Send<c::PinReply>(&Stub::Pin, pin)},
      {"RecordVerification",
       Send<c::RecordVerificationReply>(&Stub::RecordVerification, verification)},
      {"Retain", Send<c::RetainReply>(&Stub::Retain, retain)},
      {"ForgetJob", Send<c::ForgetJobReply>(&Stub::ForgetJob, forget)},
      {"StartRun", Send<c::StartRunReply>(&Stub::StartRun, start)},
      {"StopRun", Send<c::StopRunReply>(&Stub::StopRun, stop)},
      {"AcknowledgeIncident",
       Send<c::AcknowledgeIncidentReply>(&Stub::AcknowledgeIncident, acknowledge)},
      {"Quarantine", Quarantine("ECC")},
      {"Adopt", Send<c::AdoptReply>(&Stub::Adopt, adopt)}};
  const auto records = Records();
  ASSERT_EQ(records.size(), 2 * calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto& begun = records[2 * i];
    const auto& ended = records[2 * i + 1];
    EXPECT_EQ(begun["method"], calls[i].first);
    EXPECT_EQ(begun["outcome"], "begun");
    EXPECT_THAT(begun["who"].get<std::string>(), HasSubstr(fmt::format("(uid {})", ::geteuid())));
    EXPECT_THAT(begun["from"].get<std::string>(),
                HasSubstr(fmt::format("unix:{}/c.sock (process {})", dir_.path(), ::getpid())));
    EXPECT_EQ(ended["begun"], begun["number"]);
    EXPECT_EQ(ended["outcome"], calls[i].second.ToString()) << calls[i].first;
  }
  EXPECT_EQ(records[8]["what"]["spec"]["environment"][0], "TOKEN");
  EXPECT_THAT(TextOf(dir_.path() + "/data/audit.log"), Not(HasSubstr("very-secret")));
}

// The store of this test is in memory and cannot be backed up.
TEST_F(AuditTest, ABackupIsRecordedWithItsOutcome) {
  grpc::ClientContext context;
  const auto stream = stub_->Backup(&context, {});
  coordinator::BackupPart part;
  EXPECT_FALSE(stream->Read(&part));
  const Status outcome = FromGrpc(stream->Finish(), "coordinator");
  EXPECT_EQ(outcome.code(), ErrorCode::kUnsupported);
  const auto records = Records();
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0]["method"], "Backup");
  EXPECT_EQ(records[0]["outcome"], "begun");
  EXPECT_THAT(records[0]["who"].get<std::string>(),
              HasSubstr(fmt::format("(uid {})", ::geteuid())));
  EXPECT_EQ(records[1]["begun"], records[0]["number"]);
  EXPECT_THAT(records[1]["outcome"].get<std::string>(), HasSubstr("cannot be backed up"));
}

TEST_F(AuditTest, CallsThatChangeNothingAreNotRecorded) {
  coordinator::GetStatusReply reply;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->GetStatus(&context, {}, &reply).ok());
  coordinator::AdoptRequest adopt;
  adopt.set_life(5);
  adopt.set_dry_run(true);
  static_cast<void>(Send<coordinator::AdoptReply>(&Stub::Adopt, adopt));
  EXPECT_TRUE(Records().empty());
}

TEST_F(AuditTest, ACallThatCannotBeRecordedIsNotCarriedOut) {
  coordinator::StartRunRequest start;
  *start.mutable_spec() = Spec();
  const auto run = [&] { return Send<coordinator::StartRunReply>(&Stub::StartRun, start); };
  const auto runs = [&] {
    coordinator::GetRunsReply reply;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->GetRuns(&context, {}, &reply).ok());
    return reply.runs_size();
  };
  {
    const FullDisk full(20);
    const Status status = run();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr("StartRun was not carried out, since the audit log"));
    EXPECT_EQ(runs(), 0);
  }
  EXPECT_TRUE(Records().empty());
  EXPECT_TRUE(run().ok());
  EXPECT_EQ(runs(), 1);
}

}  // namespace
}  // namespace holdfast::coord
