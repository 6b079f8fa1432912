// The requests that an injector refuses, over its real service.

#include "faults/injector/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>

#include "agent/pipeline/trainer_record.h"
#include "base/random.h"
#include "coordinator/api/channel.h"
#include "faults/api/protocol.h"
#include "faults/injector/servers.h"

namespace holdfast::faults {
namespace {
namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() { Start(true); }
  ~ServiceTest() override {
    Stop();
    if (trainer_ > 0) {
      ::kill(trainer_, SIGKILL);
      ::waitpid(trainer_, nullptr, 0);
    }
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  void Start(bool enabled) {
    book_ = OrderBook::Open(folder_ + "/drills", Clock::Real(), HOLDFAST_FAULT).value();
    MachineOptions machine;
    machine.agent_run_dir = folder_;
    machine.data_dirs = {folder_};
    machine.coordinator = "unix:" + folder_ + "/c.sock";
    faults_ = std::make_unique<NodeFaults>(machine, *book_);
    service_ = std::make_unique<InjectorService>(InjectorService::Identity{"c1", "n1", enabled},
                                                 *faults_, *book_, Clock::Real());
    Endpoint endpoint = ParseEndpoint("unix:" + folder_ + "/fault.sock").value();
    guarded_ = coord::GuardedService::Make(*service_, FaultInjector::service_full_name(), "c1", {},
                                           Clock::Real())
                   .value();
    server_ = coord::StartServer(*guarded_, endpoint, {}, "listen").value();
    stub_ = FaultInjector::NewStub(coord::MakeChannel(endpoint, {}).value());
  }
  void Stop() {
    stub_.reset();
    server_->Shutdown(gpr_inf_past(GPR_CLOCK_REALTIME));
    server_.reset();
  }
  InjectRequest Good(const std::string& kind) const {
    InjectRequest request;
    request.set_protocol(kProtocol);
    request.set_cluster("c1");
    request.set_node("n1");
    request.set_sent_wall_nanos(Clock::Real().WallNanos());
    request.set_drill("d");
    request.set_kind(kind);
    request.set_job("lm");
    request.set_duration_ms(600'000);
    return request;
  }
  InjectReply Inject(const InjectRequest& request) {
    grpc::ClientContext call;
    InjectReply reply;
    EXPECT_TRUE(stub_->Inject(&call, request, &reply).ok());
    return reply;
  }
  /// Starts a process and records it as rank 0 of the job, as the agent does.
  void StartTrainer() {
    trainer_ = ::fork();
    if (trainer_ == 0) {
      ::execl("/bin/sleep", "sleep", "600", nullptr);
      ::_exit(127);
    }
    const ProcessName name = NameProcess(trainer_);
    ASSERT_TRUE(agent::WriteTrainers(folder_ + "/trainers",
                                     {{"lm", Rank{0}, name.pid, name.start_ticks, Incarnation{1}}})
                    .ok());
  }

  const std::string folder_ = fs::temp_directory_path() / ("hfi" + RandomHex(6));
  std::unique_ptr<OrderBook> book_;
  std::unique_ptr<NodeFaults> faults_;
  std::unique_ptr<InjectorService> service_;
  std::unique_ptr<coord::GuardedService> guarded_;
  std::unique_ptr<coord::ApiServer> server_;
  std::unique_ptr<FaultInjector::Stub> stub_;
  pid_t trainer_ = 0;
};

TEST_F(ServiceTest, RequestsOfOthersAreRefused) {
  ASSERT_NO_FATAL_FAILURE(StartTrainer());
  const auto refused = [&](const std::function<void(InjectRequest*)>& change, const char* why) {
    InjectRequest request = Good("kill-rank");
    change(&request);
    const InjectReply reply = Inject(request);
    EXPECT_NE(reply.code(), 0U) << why;
    EXPECT_THAT(reply.message(), HasSubstr(why));
  };
  const int64_t minute = 60'000'000'000;
  const int64_t now = Clock::Real().WallNanos();
  refused([](auto* request) { request->set_protocol(kProtocol + 1); }, "install the same release");
  refused([](auto* request) { request->set_protocol(0); }, "install the same release");
  refused([](auto* request) { request->set_cluster("c2"); }, "of cluster 'c1'");
  refused([](auto* request) { request->set_node("n2"); }, "serves node 'n1' and not 'n2'");
  refused([&](auto* request) { request->set_sent_wall_nanos(now - 2 * minute); }, "120 s ago");
  refused([&](auto* request) { request->set_sent_wall_nanos(now + 2 * minute); }, "clocks differ");
  refused([](auto* request) { request->set_sent_wall_nanos(0); }, "its drill may be over");
  refused([](auto* request) { request->set_drill("../d"); }, "drill");
  refused([](auto* request) { request->set_job("../lm"); }, "job");
  refused([](auto* request) { request->set_kind("melt"); }, "does not support the drill 'melt'");
  refused([](auto* request) { request->set_duration_ms(-1); }, "between 0 and 3600 s");
  refused([](auto* request) { request->set_duration_ms(3'600'001); }, "between 0 and 3600 s");
  refused([](auto* request) { request->set_start_in_ms(-1); }, "between 0 and 60 s");
  refused([](auto* request) { request->set_rank(1); }, "no trainer of lm rank 1");
  refused([](auto* request) { request->set_kind("kill-agent"); }, "no holdfast-agent listens");
  refused([](auto* request) { request->set_kind("kill-coordinator"); },
          "no holdfast-coordinator listens");
  refused([](auto* request) { request->set_kind("corrupt-shard"); }, "not on this node's disks");
  refused([](auto* request) { request->set_kind("fill-disk"); }, "separate file systems");
  Stop();
  Start(false);
  refused([](auto*) {}, "drills.enabled = true");
  EXPECT_TRUE(IsAlive(NameProcess(trainer_)));
  EXPECT_TRUE(fs::is_empty(folder_ + "/drills"));
}

TEST_F(ServiceTest, ADryRunChangesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartTrainer());
  for (const char* kind : {"kill-rank", "hang-rank", "slow-rank"}) {
    InjectRequest request = Good(kind);
    request.set_dry_run(true);
    const InjectReply reply = Inject(request);
    EXPECT_EQ(reply.code(), 0U) << reply.message();
    EXPECT_THAT(reply.what(), HasSubstr("process " + std::to_string(trainer_)));
  }
  EXPECT_NE(StatOf(trainer_)->state, 'T');
  EXPECT_TRUE(fs::is_empty(folder_ + "/drills"));
}

TEST_F(ServiceTest, AFaultBeginsAndEnds) {
  ASSERT_NO_FATAL_FAILURE(StartTrainer());
  ASSERT_EQ(Inject(Good("hang-rank")).code(), 0U);
  EXPECT_FALSE(fs::is_empty(folder_ + "/drills"));
  InjectRequest second = Good("slow-rank");
  second.set_drill("e");
  EXPECT_THAT(Inject(second).message(), HasSubstr("another drill (d)"));
  second.set_dry_run(true);
  EXPECT_THAT(Inject(second).message(), HasSubstr("another drill (d)"));
  grpc::ClientContext call;
  EndRequest end;
  end.set_drill("d");
  EndReply ended;
  ASSERT_TRUE(stub_->End(&call, end, &ended).ok());
  EXPECT_EQ(ended.code(), 0U) << ended.message();
  EXPECT_NE(StatOf(trainer_)->state, 'T');
  ASSERT_EQ(Inject(Good("kill-rank")).code(), 0U);
  int result = 0;
  ::waitpid(trainer_, &result, 0);
  trainer_ = 0;
  EXPECT_EQ(WTERMSIG(result), SIGKILL);
}

TEST_F(ServiceTest, AProcessOfAnotherUserIsNotTouched) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can start a process of another user";
  ASSERT_NO_FATAL_FAILURE(StartTrainer());
  const ProcessName trainer = NameProcess(trainer_);
  const pid_t child = ::fork();
  if (child == 0) {
    // CheckMaySignal must explain what the kernel refuses.
    if (::setuid(65534) != 0) ::_exit(2);
    const Status status = CheckMaySignal(trainer);
    const bool explained = status.code() == ErrorCode::kFailedPrecondition &&
                           status.message().find("runs as user 65534") != std::string::npos;
    ::_exit(explained ? 0 : 1);
  }
  int result = -1;
  ::waitpid(child, &result, 0);
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace holdfast::faults
