// Agents that are missing, slow, dying or invalid, and the library's behaviour in a user's process.

#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>
#include <set>

#include "client/core/segment_mapping.h"
#include "tests/client/core/client_fixture.h"

namespace holdfast::client {
namespace {
using testing::HasSubstr;
using ConnectionTest = ClientFixture;

TEST_F(ConnectionTest, AMissingAgentIsReportedWithWhatToDo) {
  options_.connect_timeout_ms = 200;
  int64_t ms = Timed([&] { EXPECT_EQ(Open(), HOLDFAST_UNAVAILABLE); });
  EXPECT_LT(ms, kHangMs);
  EXPECT_EQ(client_, nullptr);
  EXPECT_THAT(Message(), HasSubstr(socket_));
  EXPECT_THAT(Message(), HasSubstr("HOLDFAST_SOCKET"));
}

TEST_F(ConnectionTest, SocketOfAnotherUserIsExplained) {
  agent_->Start();
  ASSERT_EQ(::chmod(dir_.c_str(), 0755), 0);
  if (::geteuid() != 0) GTEST_SKIP() << "only root can change the user";
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer allows no threads in a forked child";
#endif
  pid_t child = ::fork();
  if (child == 0) {
    holdfast_error error{};
    holdfast_client* client = nullptr;
    bool good =
        ::setgid(65534) == 0 && ::setuid(65534) == 0 &&
        holdfast_open(&options_, tensors_.data(), 1, &client, &error) == HOLDFAST_PERMISSION_DENIED;
    std::string message = error.message;
    for (const char* part : {socket_.c_str(), "65534", "0600", "user 0"}) {
      good = good && message.find(part) != std::string::npos;
    }
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(ConnectionTest, StartsOfflineAndConnectsLater) {
  options_.start_offline = 1;
  options_.connect_timeout_ms = 50;
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  EXPECT_EQ(Save(1), HOLDFAST_UNAVAILABLE);
  EXPECT_THAT(Message(), HasSubstr(socket_));
  EXPECT_EQ(Guard(), HOLDFAST_OK);
  EXPECT_EQ(Wait(1), HOLDFAST_UNAVAILABLE);
  agent_->Start();
  ASSERT_TRUE(Eventually([&] { return Connected(); }));
  EXPECT_EQ(Save(2), HOLDFAST_OK) << Message();
  EXPECT_EQ(Wait(2), HOLDFAST_OK) << Message();
  EXPECT_EQ(Stats().failed, 1u);
}

TEST_F(ConnectionTest, ARefusalIsReportedWithItsNumbers) {
  agent_->Edit([](Script& s) {
    s.refuse_hello = ResourceExhaustedError("needs 3 slots of 4 GiB = 12 GiB, the arena has 8 GiB");
  });
  agent_->Start();
  int64_t ms = Timed([&] { EXPECT_EQ(Open(), HOLDFAST_RESOURCE_EXHAUSTED); });
  EXPECT_LT(ms, kHangMs) << "a permanent refusal must not be waited for";
  EXPECT_THAT(Message(), HasSubstr("3 slots of 4 GiB = 12 GiB, the arena has 8 GiB"));
}

TEST_F(ConnectionTest, RequestsRoomForTensorsAndExtras) {
  options_.slots = 5;
  options_.extra_bytes_max = 10 << 20;
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  agent::HelloMessage hello = agent_->hello();
  EXPECT_EQ(hello.slots, 5u);
  EXPECT_GE(hello.slot_bytes, 4096u + (10u << 20));
  EXPECT_EQ(agent::GetText(hello.job), "job");
  EXPECT_EQ(agent::GetText(hello.run_id), "run-1");
}

TEST_F(ConnectionTest, WaitsForAPredecessorThatStillRuns) {
  agent_->Edit([](Script& s) { s.refuse_hello = FailedPreconditionError("still run by 4711"); });
  agent_->Start();
  std::thread later([&] {
    ::usleep(300'000);
    agent_->Edit([](Script& s) { s.refuse_hello.reset(); });
  });
  EXPECT_EQ(Open(), HOLDFAST_OK) << Message();
  later.join();
}

TEST_F(ConnectionTest, ReconnectsAfterTheAgentRestarts) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  ASSERT_EQ(Save(1), HOLDFAST_OK);
  ASSERT_EQ(Wait(1), HOLDFAST_OK);
  agent_->Stop();
  ASSERT_TRUE(Eventually([&] { return !Connected(); }));
  EXPECT_EQ(Save(2), HOLDFAST_UNAVAILABLE);
  EXPECT_EQ(Guard(), HOLDFAST_OK);
  agent_->Start();
  ASSERT_TRUE(Eventually([&] { return Connected(); }));
  EXPECT_EQ(Save(3), HOLDFAST_OK) << Message();
  EXPECT_EQ(Wait(3), HOLDFAST_OK) << Message();
  EXPECT_EQ(Stats().reconnects, 1u);
  EXPECT_EQ(Close(), HOLDFAST_OK) << Message();
}

/// Inodes of the memfds that are mapped into this process, with the agent's own mapping.
std::multiset<std::string> MappedSegments() {
  std::multiset<std::string> inodes;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:test-segment") != std::string::npos) {
      inodes.insert(line.substr(0, line.find(' ')));
    }
  }
  return inodes;
}

TEST_F(ConnectionTest, TheMappingOfTheSameMemoryIsKept) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  auto before = MappedSegments();
  ASSERT_EQ(before.size(), 2u);
  agent_->Stop();
  agent_->Start();
  ASSERT_TRUE(Eventually([&] { return Connected() && Stats().reconnects == 1; }));
  EXPECT_EQ(MappedSegments(), before);
}

TEST_F(ConnectionTest, OtherMemoryReplacesTheMapping) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  agent_->Stop();
  agent_->ForgetSegment();
  agent_->Start();
  ASSERT_TRUE(Eventually([&] { return Connected() && Stats().reconnects == 1; }));
  EXPECT_EQ(MappedSegments().size(), 2u);
  values_.assign(values_.size(), 4);
  ASSERT_EQ(Save(9), HOLDFAST_OK) << Message();
  ASSERT_EQ(Wait(9), HOLDFAST_OK) << Message();
  std::string image = agent_->images().at(9).image;
  const std::string bytes(reinterpret_cast<const char*>(values_.data()), 4096);
  EXPECT_TRUE(image.ends_with(bytes));
}

TEST_F(ConnectionTest, AHangUpBeforeTheSealIsReportedOnceAndAtClose) {
  agent_->Edit([](Script& s) { s.hang_up_on_end = true; });
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  ASSERT_EQ(Save(1), HOLDFAST_OK);
  EXPECT_EQ(Wait(1), HOLDFAST_UNAVAILABLE) << Message();
  agent_->Edit([](Script& s) { s.hang_up_on_end = false; });
  ASSERT_TRUE(Eventually([&] { return Connected(); }));
  EXPECT_EQ(Save(2), HOLDFAST_OK) << "Wait() has reported the failure: " << Message();
  EXPECT_EQ(Wait(2), HOLDFAST_OK) << Message();

  agent_->Edit([](Script& s) { s.hang_up_on_begin = true; });
  ASSERT_EQ(Save(3), HOLDFAST_OK);
  ASSERT_TRUE(Eventually([&] { return Stats().failed == 2; }));
  agent_->Edit([](Script& s) { s.hang_up_on_begin = false; });
  ASSERT_TRUE(Eventually([&] { return Connected(); }));
  EXPECT_EQ(Save(4), HOLDFAST_UNAVAILABLE);
  EXPECT_EQ(error_.asynchronous, 1u);
  EXPECT_EQ(error_.step, 3u);
  EXPECT_THAT(Message(), HasSubstr("step 3"));
  EXPECT_EQ(Wait(4), HOLDFAST_OK) << "the call did its own work";
  EXPECT_EQ(Save(5), HOLDFAST_OK) << "reported only once: " << Message();
  EXPECT_EQ(Close(), HOLDFAST_UNAVAILABLE);
  EXPECT_THAT(Message(), HasSubstr("step 1")) << "the first error again";
}

TEST_F(ConnectionTest, ReservingMemoryExtendsTheTimeout) {
  options_.connect_timeout_ms = 2'000;
  agent_->Start();
  agent_->Edit([](Script& s) { s.silent = true; });
  holdfast_code opened = HOLDFAST_INTERNAL;
  std::thread opener([&] { opened = Open(); });
  ASSERT_TRUE(Eventually([&] { return agent_->Count(agent::MessageType::kHello) == 1; }));
  agent::NoticeMessage notice;
  notice.kind = agent::NoticeKind::kReserving;
  agent::PutText(notice.text, "the agent of node n0 reserves 51 GiB");
  for (int i = 0; i < 50; ++i) {  // 2.5 times the timeout
    agent_->Send(notice);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  agent_->Edit([](Script& s) { s.silent = false; });
  opener.join();
  EXPECT_EQ(opened, HOLDFAST_OK) << Message();
}

TEST_F(ConnectionTest, AnAgentThatStopsReservingTimesOutWithItsLastMessage) {
  options_.connect_timeout_ms = 300;
  agent_->Start();
  agent_->Edit([](Script& s) { s.silent = true; });
  holdfast_code opened = HOLDFAST_INTERNAL;
  std::thread opener([&] { opened = Open(); });
  if (Eventually([&] { return agent_->Count(agent::MessageType::kHello) == 1; })) {
    agent::NoticeMessage notice;
    notice.kind = agent::NoticeKind::kReserving;
    agent::PutText(notice.text, "the agent of node n0 reserves 51 GiB");
    agent_->Send(notice);
  }
  opener.join();
  EXPECT_EQ(opened, HOLDFAST_UNAVAILABLE);
  EXPECT_THAT(Message(), HasSubstr("reserves 51 GiB"));
}

TEST_F(ConnectionTest, AWaitForAFartherTierIsRequestedOnce) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  ASSERT_EQ(Save(1), HOLDFAST_OK);
  EXPECT_EQ(Wait(1, HOLDFAST_TIER_MEMORY, 100), HOLDFAST_DEADLINE_EXCEEDED);
  EXPECT_EQ(agent_->Count(agent::MessageType::kWantTier), 0U);
  EXPECT_EQ(Wait(1, HOLDFAST_TIER_DISK, 300), HOLDFAST_DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([&] { return agent_->Count(agent::MessageType::kWantTier) == 1; }));
}

TEST_F(ConnectionTest, ASilentAgentDoesNotBlockTraining) {
  options_.agent_timeout_ms = 1000;
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  agent_->Edit([](Script& s) { s.silent = true; });
  EXPECT_LT(Timed([&] { EXPECT_EQ(Save(1), HOLDFAST_OK); }), kHangMs);
  EXPECT_LT(Timed([&] { Guard(); }), kHangMs) << "bounded by agent_timeout_ms";
  // From now on a save is skipped at once, so a guard has nothing to wait for.
  ASSERT_TRUE(Eventually([&] { return Stats().skipped == 1; }));
  for (uint64_t step = 2; step <= 6; ++step) {
    holdfast_code code = Save(step);
    EXPECT_EQ(code, HOLDFAST_UNAVAILABLE);
    EXPECT_LT(Timed([&] { Guard(); }), kHangMs);
  }
  EXPECT_EQ(Wait(3, HOLDFAST_SEALED, 0), HOLDFAST_UNAVAILABLE);
  agent_->Edit([](Script& s) { s.silent = false; });
  ASSERT_TRUE(Eventually([&] { return agent_->Count(agent::MessageType::kAbandonSave) == 1; }))
      << "the slot that was granted too late is returned";
  EXPECT_TRUE(Eventually([&] {
    uint64_t step = 100 + Stats().saves;
    return Save(step) == HOLDFAST_OK && Wait(step) == HOLDFAST_OK;
  }));
  EXPECT_NE(Close(), HOLDFAST_OK);
}

TEST_F(ConnectionTest, AnInvalidWelcomeIsRefused) {
  options_.connect_timeout_ms = 50;
  options_.start_offline = 1;
  agent_->Edit([](Script& s) { s.raw_welcome = std::vector<std::byte>(200, std::byte{0x41}); });
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  EXPECT_TRUE(Eventually([&] {
    return holdfast_connection(client_, &error_) == HOLDFAST_UNAVAILABLE &&
           Message().find("not a Holdfast agent") != std::string::npos;
  })) << Message();
}

TEST_F(ConnectionTest, AnInvalidMessageEndsTheConnection) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  agent::NoticeMessage notice;
  notice.header.magic = 0x12345678;
  agent_->Send(notice);
  ASSERT_TRUE(Eventually([&] { return Connected() && Stats().reconnects == 1; }));
  EXPECT_EQ(Save(1), HOLDFAST_OK) << Message();
  EXPECT_EQ(Wait(1), HOLDFAST_OK) << Message();
}

TEST_F(ConnectionTest, AnotherProtocolVersionIsRefused) {
  agent::WelcomeMessage welcome;
  welcome.protocol = 99;
  agent_->Edit([&](Script& s) { s.welcome = welcome; });
  agent_->Start();
  EXPECT_EQ(Open(), HOLDFAST_UNSUPPORTED);
  EXPECT_THAT(Message(), HasSubstr("protocol 99"));
}

TEST_F(ConnectionTest, HostileWelcomesAreRefused) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();  // creates the segment
  agent::WelcomeMessage good;
  good.slots = agent_->segment()->slots();
  good.incarnation = 7;
  good.segment_bytes = agent_->segment()->bytes();
  good.control_bytes = agent::kControlBytes;
  good.slot_bytes = agent_->segment()->slot_bytes();
  Close();
  auto refused = [&](auto change) {
    agent::WelcomeMessage bad = good;
    change(bad);
    agent_->Edit([&](Script& s) { s.welcome = bad; });
    holdfast_code code = Open();
    Close();
    return code == HOLDFAST_INTERNAL;
  };
  EXPECT_FALSE(refused([](agent::WelcomeMessage&) {}));
  EXPECT_TRUE(refused([](agent::WelcomeMessage& w) { w.slots = 0; }));
  EXPECT_TRUE(refused([](agent::WelcomeMessage& w) { w.slots = 1'000'000; }));
  EXPECT_TRUE(refused([](agent::WelcomeMessage& w) { w.slot_bytes = 4096; }));
  EXPECT_TRUE(refused([](agent::WelcomeMessage& w) { w.slot_bytes = ~uint64_t{0} / 2; }));
  EXPECT_TRUE(refused([](agent::WelcomeMessage& w) { w.control_bytes = 8; }));
  EXPECT_TRUE(refused([](agent::WelcomeMessage& w) { w.control_bytes = ~uint64_t{0}; }));
  EXPECT_TRUE(refused([](agent::WelcomeMessage& w) { w.segment_bytes *= 2; }));
  agent_->Edit([&](Script& s) {
    s.welcome = good;
    s.without_descriptor = true;
  });
  options_.connect_timeout_ms = 150;
  EXPECT_EQ(Open(), HOLDFAST_UNAVAILABLE);
}

TEST_F(ConnectionTest, MemoryThatCouldShrinkIsRefused) {
  TestSegment loose(3, 4 << 20, /*sealed=*/false);
  agent::WelcomeMessage welcome;
  welcome.slots = 3;
  welcome.segment_bytes = loose.bytes();
  welcome.control_bytes = agent::kControlBytes;
  welcome.slot_bytes = loose.slot_bytes();
  auto mapping = SegmentMapping::Map(loose.fd(), welcome, 4096);
  ASSERT_FALSE(mapping);
  EXPECT_THAT(mapping.error().message(), HasSubstr("shrink"));
  TestSegment tight(3, 4 << 20);
  EXPECT_TRUE(SegmentMapping::Map(tight.fd(), welcome, 4096));
}

TEST_F(ConnectionTest, ASlotThatDoesNotExistIsNotWrittenTo) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  for (uint32_t slot : {agent_->segment()->slots(), ~0U}) {
    agent_->Edit([&](Script& s) { s.granted = slot; });
    ASSERT_EQ(Save(uint64_t{1} + slot), HOLDFAST_OK) << Message();
    EXPECT_EQ(Wait(uint64_t{1} + slot), HOLDFAST_INTERNAL);
    EXPECT_THAT(Message(), HasSubstr("granted slot " + std::to_string(slot)));
  }
}

TEST_F(ConnectionTest, FencedStaysFenced) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  agent::NoticeMessage notice;
  notice.kind = agent::NoticeKind::kFenced;
  agent::PutText(notice.text, "incarnation 8 runs");
  agent_->Send(notice);
  ASSERT_TRUE(Eventually([&] { return holdfast_connection(client_, &error_) == HOLDFAST_FENCED; }));
  EXPECT_THAT(Message(), HasSubstr("incarnation 8 runs"));
  EXPECT_EQ(Save(1), HOLDFAST_FENCED);
}

TEST_F(ConnectionTest, FencedOnReconnectIsFinal) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  agent_->Stop();
  agent_->Edit([](Script& s) { s.refuse_hello = FencedError("run-2 is newer"); });
  agent_->Start();
  ASSERT_TRUE(Eventually([&] { return Save(Stats().saves + 1) == HOLDFAST_FENCED; }));
  EXPECT_THAT(Message(), HasSubstr("run-2 is newer"));
  EXPECT_EQ(holdfast_restore(client_, nullptr, 5000, nullptr, &error_), HOLDFAST_FENCED);
}

TEST_F(ConnectionTest, AForkedChildIsRefused) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  pid_t child = ::fork();
  if (child == 0) {
    bool good = Save(1) == HOLDFAST_FAILED_PRECONDITION;
    good = good && Guard() == HOLDFAST_FAILED_PRECONDITION;
    good = good &&
           holdfast_restore(client_, nullptr, 10, nullptr, &error_) == HOLDFAST_FAILED_PRECONDITION;
    good = good && holdfast_difference_count(client_) == 0;
    // The mapping is not inherited: one of the two (the agent's own) remains.
    good = good && MappedSegments().size() == 1;
    good = good && Close() == HOLDFAST_FAILED_PRECONDITION;
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Save(1), HOLDFAST_OK) << Message();
  EXPECT_EQ(Wait(1), HOLDFAST_OK) << Message();
}

size_t EntriesOf(const char* folder) {
  size_t count = 0;
  DIR* dir = ::opendir(folder);
  while (::readdir(dir) != nullptr) ++count;
  ::closedir(dir);
  return count;
}

TEST_F(ConnectionTest, HundredClientsLeakNothing) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  Close();
  ::usleep(20'000);
  size_t files = EntriesOf("/proc/self/fd");
  size_t threads = EntriesOf("/proc/self/task");
  size_t maps = MappedSegments().size();
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
    ASSERT_EQ(Save(1), HOLDFAST_OK) << Message();
    ASSERT_EQ(Close(), HOLDFAST_OK) << Message();
  }
  EXPECT_TRUE(Eventually([&] { return EntriesOf("/proc/self/fd") == files; }));
  EXPECT_EQ(EntriesOf("/proc/self/task"), threads);
  EXPECT_EQ(MappedSegments().size(), maps);
}

TEST_F(ConnectionTest, OwnThreadsBlockEverySignal) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  int ours = 0;
  for (auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name.rfind("holdfast-", 0) != 0) continue;
    ++ours;
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("SigBlk:", 0) != 0) continue;
      uint64_t blocked = std::stoull(line.substr(7), nullptr, 16);
      for (int signal : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGALRM, SIGPROF}) {
        EXPECT_TRUE(blocked & (1ULL << (signal - 1))) << name << " receives signal " << signal;
      }
    }
  }
  EXPECT_EQ(ours, 2);
  sigset_t mine;
  pthread_sigmask(SIG_SETMASK, nullptr, &mine);
  EXPECT_EQ(sigismember(&mine, SIGINT), 0) << "the caller's own mask must be unchanged";
}

TEST_F(ConnectionTest, CommitsFailuresAndLatest) {
  agent_->Edit([](Script& s) { s.commit_memory = true; });
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  holdfast_version latest{};
  EXPECT_EQ(holdfast_latest(client_, HOLDFAST_TIER_MEMORY, &latest, &error_), HOLDFAST_NOT_FOUND);
  ASSERT_EQ(Save(1), HOLDFAST_OK);
  EXPECT_EQ(Wait(1, HOLDFAST_TIER_MEMORY), HOLDFAST_OK) << Message();
  ASSERT_EQ(holdfast_latest(client_, HOLDFAST_TIER_MEMORY, &latest, &error_), HOLDFAST_OK);
  EXPECT_EQ(latest.incarnation, 7u);
  EXPECT_EQ(latest.step, 1u);
  EXPECT_EQ(Wait(1, HOLDFAST_TIER_DISK, 20), HOLDFAST_DEADLINE_EXCEEDED);
  EXPECT_EQ(Wait(17, HOLDFAST_TIER_MEMORY, 20), HOLDFAST_NOT_FOUND);
  EXPECT_EQ(Wait(1, 77, 20), HOLDFAST_INVALID_ARGUMENT);

  agent::NoticeMessage notice;
  notice.kind = agent::NoticeKind::kFailed;
  notice.incarnation = 7;
  notice.step = 1;
  notice.tier = HOLDFAST_TIER_DISK;
  notice.code = HOLDFAST_OUT_OF_SPACE;
  agent::PutText(notice.text, "/data is full");
  agent_->Send(notice);
  ASSERT_TRUE(Eventually([&] { return Stats().last_error == HOLDFAST_OUT_OF_SPACE; }));
  EXPECT_EQ(Guard(), HOLDFAST_OUT_OF_SPACE);
  EXPECT_EQ(error_.asynchronous, 1u);
  EXPECT_THAT(Message(), HasSubstr("/data is full"));
  EXPECT_EQ(Guard(), HOLDFAST_OK);
  EXPECT_EQ(Wait(1, HOLDFAST_TIER_DISK), HOLDFAST_OUT_OF_SPACE);
  // The commit of a later step covers this step, too.
  ASSERT_EQ(Save(2), HOLDFAST_OK);
  notice.kind = agent::NoticeKind::kCommitted;
  notice.step = 2;
  agent_->Send(notice);
  EXPECT_TRUE(Eventually([&] { return Wait(1, HOLDFAST_TIER_DISK, 0) == HOLDFAST_OK; }));
}

// Every incarnation may repeat the numbers of steps: a commit of an earlier incarnation does not
// apply to a save of this one.
TEST_F(ConnectionTest, ACommitOfAnEarlierIncarnationEndsNoWait) {
  agent_->Edit([](Script& s) { s.seal = false; });
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  ASSERT_EQ(Save(3), HOLDFAST_OK);
  ASSERT_TRUE(Eventually([&] { return Stats().copied == 1; }));
  agent::NoticeMessage notice;
  notice.incarnation = 6;
  notice.step = 3;
  agent_->Send(notice);  // sealed
  notice.kind = agent::NoticeKind::kCommitted;
  notice.tier = HOLDFAST_TIER_MEMORY;
  notice.step = 9;
  agent_->Send(notice);
  holdfast_version latest{};
  ASSERT_TRUE(Eventually([&] {
    return holdfast_latest(client_, HOLDFAST_TIER_MEMORY, &latest, &error_) == HOLDFAST_OK;
  }));
  EXPECT_EQ(latest.incarnation, 6u);
  EXPECT_EQ(Wait(3, HOLDFAST_SEALED, 20), HOLDFAST_DEADLINE_EXCEEDED);
  EXPECT_EQ(Wait(3, HOLDFAST_TIER_MEMORY, 20), HOLDFAST_DEADLINE_EXCEEDED);
  notice.incarnation = 7;
  notice.step = 3;
  agent_->Send(notice);
  EXPECT_EQ(Wait(3, HOLDFAST_TIER_MEMORY), HOLDFAST_OK) << Message();
}

TEST_F(ConnectionTest, ASupersededVersionIsNoFailure) {
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  ASSERT_EQ(Save(1), HOLDFAST_OK);
  ASSERT_EQ(Wait(1), HOLDFAST_OK);
  agent::NoticeMessage notice;
  notice.kind = agent::NoticeKind::kFailed;
  notice.incarnation = 7;
  notice.step = 1;
  notice.tier = HOLDFAST_TIER_DISK;
  notice.code = HOLDFAST_ABORTED;
  agent_->Send(notice);
  ASSERT_TRUE(Eventually([&] { return Stats().superseded == 1; }));
  EXPECT_EQ(Guard(), HOLDFAST_OK);
  EXPECT_EQ(Wait(1, HOLDFAST_TIER_DISK, 10), HOLDFAST_ABORTED);
  EXPECT_EQ(Close(), HOLDFAST_OK) << Message();
}

TEST_F(ConnectionTest, CloseFlushesWithABound) {
  agent_->Edit([](Script& s) { s.seal = false; });
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  ASSERT_EQ(Save(33), HOLDFAST_OK);
  int64_t ms = Timed([&] { EXPECT_EQ(Close(300), HOLDFAST_DEADLINE_EXCEEDED); });
  EXPECT_THAT(Message(), HasSubstr("33"));
  EXPECT_GE(ms, 300);
  EXPECT_LT(ms, kHangMs);
}

TEST_F(ConnectionTest, CloseWhileTheAgentIsSilent) {
  options_.agent_timeout_ms = 60'000;
  agent_->Start();
  ASSERT_EQ(Open(), HOLDFAST_OK) << Message();
  agent_->Edit([](Script& s) { s.silent = true; });
  ASSERT_EQ(Save(1), HOLDFAST_OK);
  EXPECT_LT(Timed([&] { EXPECT_NE(Close(100), HOLDFAST_OK); }), kHangMs);
}

TEST_F(ConnectionTest, CloseOfNullIsOk) {
  EXPECT_EQ(holdfast_close(nullptr, 0, nullptr), HOLDFAST_OK);
  EXPECT_EQ(holdfast_save(nullptr, 1, nullptr, nullptr), HOLDFAST_INVALID_ARGUMENT);
  holdfast_restored_free(nullptr);
}

}  // namespace
}  // namespace holdfast::client
