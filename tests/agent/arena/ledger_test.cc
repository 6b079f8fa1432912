#include "agent/arena/ledger.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <vector>

#include "base/random.h"

namespace holdfast::agent {
namespace {

constexpr uint64_t kSlotBytes = 8ULL << 20;

/// A ledger over plain memory aligned like a mapping.
class LedgerTest : public ::testing::Test {
 protected:
  LedgerTest() : words_(Ledger::BytesFor(3, kSlotBytes) / 64) { Ledger::Make(memory(), Shape()); }
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  static SegmentShape Shape() {
    return {.id = 0x1234,
            .owner = {.job = "llm", .rank = Rank{5}, .uid = 1000},
            .slots = 3,
            .slot_bytes = kSlotBytes};
  }
  std::span<std::byte> memory() {
    return {reinterpret_cast<std::byte*>(words_.data()), words_.size() * 64};
  }
  Ledger Open() {
    auto ledger = Ledger::Read(memory());
    EXPECT_TRUE(ledger) << ledger.error().ToString();
    return *ledger;
  }
  static SlotRecord Record(uint64_t step) {
    return {.state = SlotState::kLeased,
            .version = {Incarnation{2}, Step{step}},
            .world = 8,
            .image_bytes = (3ULL << 20) + 17};
  }
  static ShardSeal Seal(uint64_t step, uint64_t seed) {
    Random random(seed);
    ShardSeal seal;
    seal.identity = {
        .job = "llm", .version = {Incarnation{2}, Step{step}}, .rank = Rank{5}, .world = 8};
    seal.image_bytes = (3ULL << 20) + 17;
    for (int i = 0; i < 4; ++i) seal.chunk_crcs.push_back(static_cast<uint32_t>(random.Next()));
    seal.wall_nanos = 77;
    return seal;
  }

  std::vector<Line> words_;
};

TEST_F(LedgerTest, StoresEveryState) {
  Ledger ledger = Open();
  EXPECT_EQ(ledger.shape().owner, Shape().owner);
  EXPECT_EQ(ledger.shape().id, Shape().id);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(ledger.state(i), SlotState::kFree);
  ledger.WriteLeased(1, Record(10));
  ledger.WriteLeased(2, Record(11));
  ledger.WriteSealed(2, Seal(11, 1));
  Ledger again = Open();
  EXPECT_EQ(again.state(0), SlotState::kFree);
  EXPECT_EQ(again.record(1).state, SlotState::kLeased);
  EXPECT_EQ(again.record(1).version, (VersionId{Incarnation{2}, Step{10}}));
  EXPECT_EQ(again.record(1).world, 8U);
  EXPECT_EQ(again.record(1).image_bytes, (3ULL << 20) + 17);
  ASSERT_TRUE(again.ReadSeal(2));
  EXPECT_EQ(*again.ReadSeal(2), Seal(11, 1));
  EXPECT_EQ(again.ReadSeal(1).error().code(), ErrorCode::kFailedPrecondition);
  again.WriteFree(2);
  EXPECT_EQ(Open().state(2), SlotState::kFree);
}

TEST_F(LedgerTest, EveryDamagedByteOfTheHeaderIsDetected) {
  for (size_t at = 0; at < 192; ++at) {
    for (int bit : {0, 7}) {
      memory()[at] ^= std::byte{1} << bit;
      auto ledger = Ledger::Read(memory());
      ASSERT_FALSE(ledger) << "byte " << at;
      memory()[at] ^= std::byte{1} << bit;
    }
  }
  EXPECT_EQ(Ledger::Read(memory().first(4096)).error().code(), ErrorCode::kDataLoss);
  EXPECT_EQ(Ledger::Read(memory().first(100)).error().code(), ErrorCode::kDataLoss);
}

TEST_F(LedgerTest, ANewerFormatIsUnsupportedNotDamaged) {
  memory()[8] = std::byte{3};
  EXPECT_EQ(Ledger::Read(memory()).error().code(), ErrorCode::kUnsupported);
}

TEST_F(LedgerTest, EveryDamagedByteOfASealedRecordIsDetected) {
  Ledger ledger = Open();
  ledger.WriteLeased(0, Record(10));
  ledger.WriteSealed(0, Seal(10, 2));
  ASSERT_TRUE(ledger.Check(0).ok());
  for (size_t at = 0; at < 56 + 4 * 4 + 8; ++at) {
    memory()[4096 + at] ^= std::byte{0x10};
    EXPECT_EQ(ledger.Check(0).code(), ErrorCode::kDataLoss) << "byte " << at;
    EXPECT_FALSE(ledger.ReadSeal(0)) << "byte " << at;
    memory()[4096 + at] ^= std::byte{0x10};
  }
  EXPECT_TRUE(ledger.Check(0).ok());
}

TEST_F(LedgerTest, ASealedSlotHasItsLife) {
  Ledger ledger = Open();
  ledger.WriteLeased(0, Record(10));
  ShardSeal seal = Seal(10, 2);
  seal.life = LifeId{77};
  ledger.WriteSealed(0, seal);
  EXPECT_EQ(ledger.ReadSeal(0)->life, LifeId{77});
  EXPECT_EQ(ledger.record(0).life, LifeId{77});
  ledger.WriteFree(0);
  EXPECT_EQ(ledger.record(0).life, LifeId{});
}

TEST_F(LedgerTest, ARecordCopiedToAnotherSlotIsDamage) {
  Ledger ledger = Open();
  ledger.WriteLeased(0, Record(10));
  ledger.WriteSealed(0, Seal(10, 2));
  constexpr size_t kStride = 128;  // head and a table of 8, rounded to 64
  std::memcpy(memory().data() + 4096 + kStride, memory().data() + 4096, kStride);
  EXPECT_TRUE(ledger.Check(0).ok());
  EXPECT_EQ(ledger.state(1), SlotState::kSealed);
  EXPECT_EQ(ledger.Check(1).code(), ErrorCode::kDataLoss);
}

// A change writes several words and then the state. Whichever of those words were written when the
// process died, the slot reads as before the change.
TEST_F(LedgerTest, APartialChangeReadsAsTheOldState) {
  Random random(7);
  Ledger ledger = Open();
  using Step = std::function<void()>;
  const std::vector<Step> changes = {
      [&] { ledger.WriteLeased(1, Record(20)); }, [&] { ledger.WriteSealed(1, Seal(20, 3)); },
      [&] { ledger.WriteFree(1); }, [&] { ledger.WriteLeased(1, Record(21)); },
      [&] { ledger.WriteFree(1); }};
  constexpr size_t kStateAt = 4096 + 128;
  for (size_t change = 0; change < changes.size(); ++change) {
    std::vector<std::byte> before(memory().begin(), memory().end());
    SlotRecord old = ledger.record(1);
    changes[change]();
    std::vector<std::byte> after(memory().begin(), memory().end());
    for (int round = 0; round < 500; ++round) {
      for (size_t at = 0; at < after.size(); at += 4) {
        bool state_word = at >= kStateAt && at < kStateAt + 8;
        bool written = !state_word && random.OneIn(2);
        std::memcpy(memory().data() + at, (written ? after : before).data() + at, 4);
      }
      Ledger torn = Open();
      EXPECT_EQ(torn.state(1), old.state);
      if (old.state != SlotState::kLeased) {
        ASSERT_TRUE(torn.Check(1).ok()) << "change " << change;
      }
      EXPECT_EQ(torn.state(0), SlotState::kFree);
      EXPECT_EQ(torn.state(2), SlotState::kFree);
    }
    std::copy(after.begin(), after.end(), memory().begin());
    EXPECT_TRUE(ledger.Check(1).ok());
  }
}

/// Runs `change` in a child process, one machine instruction at a time, and calls `check` after
/// each. Returns the number of instructions; 0 when this process may not trace.
int64_t StepThrough(const std::function<void()>& change, const std::function<bool()>& check) {
  pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
    ::raise(SIGSTOP);
    change();
    ::_exit(0);
  }
  int64_t steps = 0;
  int status = 0;
  while (::waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
    ++steps;
    if (!check()) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return steps;
    }
    ::ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr);
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 77 ? 0 : steps;
}

// The guarantee: after a kill at any instruction, a slot is intact, in its old or its new state.
TEST_F(LedgerTest, AfterEveryInstructionASlotIsInItsOldOrNewState) {
  const size_t bytes = memory().size();
  void* shared = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  Ledger ledger = Ledger::Make({static_cast<std::byte*>(shared), bytes}, Shape());
  // Leftovers of an earlier use of the slot, which no later state may use.
  ledger.WriteLeased(1, Record(5));
  ledger.WriteSealed(1, Seal(5, 9));
  ledger.WriteFree(1);
  struct Change {
    std::function<void()> make;
    SlotState after;
  };
  const std::vector<Change> changes = {
      {[&] { ledger.WriteLeased(1, Record(20)); }, SlotState::kLeased},
      {[&] { ledger.WriteSealed(1, Seal(20, 3)); }, SlotState::kSealed},
      {[&] { ledger.WriteFree(1); }, SlotState::kFree},
      {[&] { ledger.WriteLeased(1, Record(21)); }, SlotState::kLeased},
      {[&] { ledger.WriteFree(1); }, SlotState::kFree}};
  for (size_t i = 0; i < changes.size(); ++i) {
    const SlotState before = ledger.state(1);
    int turns = 0;
    SlotState last = before;
    int64_t steps = StepThrough(changes[i].make, [&] {
      Status status = ledger.Check(1);
      SlotState now = ledger.state(1);
      EXPECT_TRUE(status.ok()) << "change " << i << ": " << status.ToString();
      EXPECT_TRUE(now == before || now == changes[i].after) << "change " << i;
      if (now == SlotState::kSealed && i == 1) {
        EXPECT_TRUE(ledger.ReadSeal(1) == Seal(20, 3));
      }
      if (now != last) ++turns;
      last = now;
      return !::testing::Test::HasFailure();
    });
    if (steps == 0) GTEST_SKIP() << "this process may not trace its child";
    EXPECT_GT(steps, 5);
    EXPECT_EQ(turns, 1) << "change " << i << " in " << steps << " instructions";
    if (HasFailure()) break;
  }
  ::munmap(shared, bytes);
}

TEST_F(LedgerTest, RandomBytesAreRefused) {
  Random random(11);
  for (int round = 0; round < 2000; ++round) {
    for (std::byte& b : memory().first(256)) b = static_cast<std::byte>(random.Next());
    if (random.OneIn(2)) std::memcpy(memory().data(), "HFLEDGER\1\0\0\0", 12);
    EXPECT_FALSE(Ledger::Read(memory()));
  }
}

}  // namespace
}  // namespace holdfast::agent
