#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <set>
#include <vector>

#include "tests/agent/arena/arena_fixture.h"
#include "tests/agent/arena/crash_events.h"

// Kills an agent at every crash point and at random instants, repeatedly over the same memory.
// After each crash, the next agent adopts the memory and must find everything that was
// acknowledged.

namespace holdfast::agent {
namespace {

class ArenaCrashTest : public ::testing::Test {
 protected:
  struct Child {
    pid_t pid = -1;
    UniqueFd events;
  };

  Child Start(const std::string& crash, uint64_t seed) {
    auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    std::vector<std::string> words = {folder / "agent_arena_crash_child", run_dir_.path(),
                                      RunDir::KeeperBinary(), std::to_string(seed),
                                      std::to_string(first_step_)};
    first_step_ += 1'000'000;
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = ::fork();
    if (pid == 0) {
      if (!crash.empty()) ::setenv("HOLDFAST_CRASH", crash.c_str(), 1);
      int quiet = ::open("/dev/null", O_WRONLY);
      ::dup2(ends[1], 1);
      ::dup2(quiet, 2);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    return {.pid = pid, .events = UniqueFd(ends[0])};
  }

  /// Reads events until the child has died. Kills it `moment_us` after `kill_after` events (0: the
  /// child ends at a crash point).
  void Follow(Child child, uint64_t kill_after, uint64_t moment_us) {
    CrashEvent event;
    uint64_t seen = 0;
    while (::read(child.events.get(), &event, sizeof(event)) == sizeof(event)) {
      Note(event);
      if (++seen == kill_after) {
        Clock::Real().SleepFor(std::chrono::microseconds(moment_us));
        ::kill(child.pid, SIGKILL);
      }
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child.pid, &status, 0), child.pid);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "status " << status;
  }

  void Note(const CrashEvent& event) {
    auto& expected = expected_[{event.rank, event.slot}];
    switch (event.kind) {
      case CrashEvent::kSealed:
        expected = {.step = event.step};
        break;
      case CrashEvent::kFreeing:
        expected.freeing = true;
        break;
      case CrashEvent::kFreed:
        expected = {};
        break;
    }
  }

  /// Adopts the dead child's memory and compares it with what the child had acknowledged.
  void CheckAfterDeath() {
    auto arena = run_dir_.Open(64 * kMiB);
    ASSERT_NE(arena, nullptr);
    uint64_t reserved = 0;
    std::set<std::pair<uint32_t, uint64_t>> versions;
    for (Segment* segment : arena->segments()) {
      reserved += segment->memory().size();
      uint32_t rank = segment->owner().rank.value;
      for (uint32_t slot = 0; slot < segment->slot_count(); ++slot) {
        SlotRecord record = segment->record(slot);
        ASSERT_NE(record.state, SlotState::kLeased);
        Expected& expected = expected_[{rank, slot}];
        if (expected.step != 0 && !expected.freeing) {
          ASSERT_EQ(record.state, SlotState::kSealed) << "an acknowledged seal is lost";
          ASSERT_EQ(record.version.step.value, expected.step);
        }
        if (record.state == SlotState::kSealed) {
          CheckImage(*segment, slot);
          ASSERT_TRUE(versions.emplace(rank, record.version.step.value).second);
        }
        // The outcome of an unacknowledged operation is certain from now on.
        bool sealed = record.state == SlotState::kSealed;
        expected = {.step = sealed ? record.version.step.value : 0};
      }
    }
    EXPECT_EQ(arena->usage().reserved_bytes, reserved);
    EXPECT_EQ(KeeperClient::Connect(run_dir_.path(), Clock::Real())->Usage()->entries,
              arena->segments().size());
    sealed_seen_ += versions.size();
  }

  static void CheckImage(Segment& segment, uint32_t slot) {
    auto seal = segment.seal(slot);
    ASSERT_TRUE(seal) << seal.error().ToString();
    auto image = segment.slot(slot).first(seal->image_bytes);
    ASSERT_EQ(FirstBadChunk(image, seal->chunk_crcs), kNoChunk);
    ASSERT_TRUE(HoldsImage(image, seal->identity.version, segment.owner().rank));
  }

  struct Expected {
    uint64_t step = 0;  // 0: nothing acknowledged
    bool freeing = false;
  };
  RunDir run_dir_;
  uint64_t first_step_ = 1;
  uint64_t sealed_seen_ = 0;
  std::map<std::pair<uint32_t, uint32_t>, Expected> expected_;
};

TEST_F(ArenaCrashTest, AtEveryCrashPoint) {
#if !defined(HOLDFAST_CRASH_POINTS)
  GTEST_SKIP() << "built without crash points";
#endif
  uint64_t seed = 100;
  for (const char* point : {"arena.after_reserve", "arena.after_lease", "arena.mid_seal",
                            "arena.after_seal", "arena.after_free"}) {
    for (const char* passing : {":1", ":2", ":7"}) {
      SCOPED_TRACE(std::string(point) + passing);
      Follow(Start(std::string(point) + passing, seed++), 0, 0);
      if (HasFatalFailure()) return;
      CheckAfterDeath();
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(sealed_seen_, 15U);
}

TEST_F(ArenaCrashTest, AtRandomInstants) {
  Random random(5);
  for (uint64_t round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    Follow(Start("", 1000 + round), 1 + random.Below(30), random.Below(4000));
    if (HasFatalFailure()) return;
    CheckAfterDeath();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(sealed_seen_, 40U);
}

}  // namespace
}  // namespace holdfast::agent
