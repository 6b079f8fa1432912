#include "agent/arena/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cerrno>
#include <thread>

#include "agent/api/socket.h"
#include "agent/arena/ledger.h"
#include "tests/agent/arena/arena_fixture.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;

constexpr uint64_t kBudget = 64 * kMiB;

class ArenaTest : public ::testing::Test {
 protected:
  ArenaTest() : arena_(run_dir_.Open(kBudget)) {}
  void Reopen(uint64_t budget_bytes = kBudget) {
    arena_.reset();
    arena_ = run_dir_.Open(budget_bytes);
    ASSERT_NE(arena_, nullptr);
  }
  static SegmentOwner Owner(uint32_t rank) {
    return {.job = "llm", .rank = Rank{rank}, .uid = 1000};
  }
  Segment* Reserve(uint32_t rank, uint32_t slots = 3, uint64_t slot_bytes = 2 * kMiB) {
    auto segment = arena_->Reserve(Owner(rank), slots, slot_bytes);
    EXPECT_TRUE(segment) << segment.error().ToString();
    return segment ? *segment : nullptr;
  }
  /// Checks a slot's state, its seal, and its bytes.
  static void ExpectSealed(Segment& segment, uint32_t slot, VersionId version) {
    ASSERT_EQ(segment.record(slot).state, SlotState::kSealed);
    EXPECT_EQ(segment.record(slot).version, version);
    auto seal = segment.seal(slot);
    ASSERT_TRUE(seal) << seal.error().ToString();
    auto image = segment.slot(slot).first(seal->image_bytes);
    EXPECT_EQ(*seal, SealOf(image, segment.owner(), version, 4));
    EXPECT_TRUE(HoldsImage(image, version, segment.owner().rank));
  }

  RunDir run_dir_;
  std::unique_ptr<Arena> arena_;
};

TEST_F(ArenaTest, ARetainedSegmentStaysAlongsideTheLargerOneUntilItIsReleased) {
  Segment* small = Reserve(1, 2, 2 * kMiB);
  auto slot = SaveImage(*small, Version(1, 7), kMiB);
  ASSERT_TRUE(slot) << slot.error().ToString();
  EXPECT_FALSE(arena_->Reserve(Owner(1), 2, 6 * kMiB)) << "the small segment holds a slot";
  ASSERT_TRUE(arena_->RetainSegment(small).ok());
  EXPECT_TRUE(arena_->IsRetained(small));
  EXPECT_EQ(arena_->Find("llm", Rank{1}), nullptr);
  ASSERT_TRUE(arena_->ReinstateSegment(small).ok());
  EXPECT_EQ(arena_->Find("llm", Rank{1}), small);
  ASSERT_TRUE(arena_->RetainSegment(small).ok());
  Segment* large = Reserve(1, 2, 6 * kMiB);
  ASSERT_NE(large, small);
  EXPECT_EQ(arena_->Find("llm", Rank{1}), large);
  EXPECT_EQ(arena_->ReinstateSegment(small).code(), ErrorCode::kAlreadyExists);
  ExpectSealed(*small, *slot, Version(1, 7));
  const uint64_t reserved = arena_->usage().reserved_bytes;
  EXPECT_EQ(reserved, 2 * kControlBytes + 16 * kMiB);

  ASSERT_NO_FATAL_FAILURE(Reopen());
  EXPECT_EQ(arena_->usage().reserved_bytes, reserved);
  large = arena_->Find("llm", Rank{1});
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(large->slot_bytes(), 6 * kMiB) << "the rank saves into the larger one";
  ASSERT_EQ(arena_->segments().size(), 2U);
  for (Segment* segment : arena_->segments()) {
    if (segment != large) small = segment;
  }
  EXPECT_TRUE(arena_->IsRetained(small));
  ExpectSealed(*small, *slot, Version(1, 7));
  ASSERT_TRUE(arena_->Release(small).ok());
  EXPECT_EQ(arena_->usage().reserved_bytes, kControlBytes + 12 * kMiB);
  EXPECT_EQ(arena_->Find("llm", Rank{1}), large);
}

TEST_F(ArenaTest, ASegmentHasTheLayoutOfTheProtocol) {
  Segment* segment = Reserve(3, 2, 3 * kMiB);
  EXPECT_EQ(segment->owner(), Owner(3));
  EXPECT_EQ(segment->slot_count(), 2U);
  EXPECT_EQ(segment->slot_bytes(), 4 * kMiB) << "rounded up to 2 MiB";
  EXPECT_EQ(segment->memory().size(), kControlBytes + 8 * kMiB);
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(segment->slot(i).data(), segment->memory().data() + kControlBytes + i * 4 * kMiB);
    EXPECT_EQ(segment->slot(i).size(), 4 * kMiB);
    EXPECT_EQ(reinterpret_cast<std::byte*>(&segment->progress(i)),
              segment->memory().data() + i * 64);
  }
  EXPECT_NE(segment->id(), 0U);
  EXPECT_EQ(arena_->Find("llm", Rank{3}), segment);
  EXPECT_EQ(arena_->Find("llm", Rank{4}), nullptr);
  EXPECT_EQ(arena_->Find("other", Rank{3}), nullptr);
  EXPECT_EQ(arena_->segments(), std::vector<Segment*>{segment});
  EXPECT_EQ(arena_->usage().reserved_bytes, kControlBytes + 8 * kMiB);
}

TEST_F(ArenaTest, SlotsRefuseOperationsThatDoNotFitTheirState) {
  Segment& segment = *Reserve(0);
  EXPECT_EQ(segment.Lease(Version(1, 1), 4, 2 * kMiB + 1).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_THAT(segment.Lease(Version(1, 1), 4, 2 * kMiB + 1).error().message(),
              HasSubstr("an image of 2097153 bytes does not fit the slots of llm/rank-0, which "
                        "have 2097152 bytes"));
  EXPECT_FALSE(segment.Lease(Version(1, 1), 4, 0));
  uint32_t slot = *segment.Lease(Version(1, 1), 4, 100);
  auto image = segment.slot(slot).first(100);
  ShardSeal seal = SealOf(image, segment.owner(), Version(1, 1), 4);
  for (int wrong = 0; wrong < 7; ++wrong) {
    ShardSeal other = seal;
    if (wrong == 0) other.identity.job = "other";
    if (wrong == 1) other.identity.version = Version(1, 2);
    if (wrong == 2) other.identity.rank = Rank{1};
    if (wrong == 3) other.identity.world = 8;
    if (wrong == 4) other.image_bytes = 101;
    if (wrong == 5) other.chunk_crcs.push_back(0);
    if (wrong == 6) other.parts.emplace_back();
    EXPECT_EQ(segment.Seal(slot, other).code(), ErrorCode::kInvalidArgument) << wrong;
  }
  EXPECT_EQ(segment.Free(slot).code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(segment.seal(slot).error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(segment.Seal(slot, seal).ok());
  EXPECT_EQ(segment.Seal(slot, seal).code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(segment.Abandon(slot).code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(segment.Free(99).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(segment.Free(slot).ok());
}

TEST_F(ArenaTest, ARequestOverTheBudgetIsRefusedWithNumbers) {
  Reserve(0, 3, 10 * kMiB);  // 31 MiB
  auto refused = arena_->Reserve(Owner(1), 4, 10 * kMiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  std::string text = refused.error().message();
  for (const char* part : {"llm/rank-1 needs 41 MiB", "4 slots of 10 MiB", "arena's 64 MiB",
                           "have reserved 31 MiB of", "[arena] bytes to at least 75497472"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_EQ(arena_->usage().reserved_bytes, 31 * kMiB) << "a refusal reserves nothing";
  EXPECT_TRUE(arena_->Reserve(Owner(1), 3, 10 * kMiB));
  EXPECT_EQ(arena_->Reserve(Owner(2), 0, kMiB).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(arena_->Reserve(Owner(2), 65, kMiB).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(arena_->Reserve(Owner(2), 1, ~0ULL).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(arena_->Reserve({.job = "../x", .rank = Rank{1}, .uid = 0}, 1, 1).error().code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(ArenaTest, ARequestBeyondTheMachinesMemoryLeavesTheBudgetUnchanged) {
  Reopen(1ULL << 52);
  auto refused = arena_->Reserve(Owner(1), 2, kSlotBytesMax);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(arena_->usage().reserved_bytes, 0U);
  EXPECT_NE(Reserve(1), nullptr);
}

TEST_F(ArenaTest, AReservedSegmentIsReusedOrReplaced) {
  Segment* first = Reserve(0, 2, 4 * kMiB);
  uint64_t id = first->id();
  EXPECT_EQ(Reserve(0, 2, 3 * kMiB), first);
  EXPECT_EQ(Reserve(0, 1, kMiB), first);
  uint32_t slot = *SaveImage(*first, Version(3, 120), 1000);
  auto refused = arena_->Reserve(Owner(0), 3, 4 * kMiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message(), HasSubstr("still holds slot 0 sealed 3-120"));
  ASSERT_TRUE(first->Free(slot).ok());
  Segment* second = Reserve(0, 3, 4 * kMiB);
  EXPECT_NE(second->id(), id);
  EXPECT_EQ(arena_->usage().reserved_bytes, 13 * kMiB);
  SegmentOwner stranger = Owner(0);
  stranger.uid = 1001;
  auto denied = arena_->Reserve(stranger, 1, kMiB);
  ASSERT_FALSE(denied);
  EXPECT_EQ(denied.error().code(), ErrorCode::kPermissionDenied);
  EXPECT_THAT(denied.error().message(), HasSubstr("belongs to user 1000, not to user 1001"));
}

TEST_F(ArenaTest, AUserHasAShareAndRootHasAll) {
  arena_.reset();
  ArenaOptions options = run_dir_.Options(kBudget);
  options.user_bytes = kBudget / 2;
  arena_ = std::move(Arena::Open(options, Clock::Real()).value());
  ASSERT_NE(Reserve(0, 3, 10 * kMiB), nullptr);
  auto refused = arena_->Reserve(Owner(1), 2, kMiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  for (const char* part : {"llm/rank-1 needs 5 MiB", "uid 1000 has 31 MiB of the 32 MiB",
                           "limits.arena_percent_per_user"}) {
    EXPECT_THAT(refused.error().message(), HasSubstr(part));
  }
  EXPECT_TRUE(arena_->Reserve({.job = "other", .rank = Rank{0}, .uid = 1001}, 2, kMiB));
  EXPECT_TRUE(arena_->Reserve({.job = "roots", .rank = Rank{0}, .uid = 0}, 2, 10 * kMiB));
  ASSERT_TRUE(arena_->Release(arena_->Find("llm", Rank{0})).ok());
  EXPECT_NE(Reserve(1, 2, kMiB), nullptr) << "memory that is free again does not count";
  // The next agent counts what it adopts.
  ASSERT_NE(Reserve(2, 2, 12 * kMiB), nullptr);
  arena_.reset();
  arena_ = std::move(Arena::Open(options, Clock::Real()).value());
  EXPECT_FALSE(arena_->Reserve(Owner(3), 2, 2 * kMiB));
}

TEST_F(ArenaTest, AJobHasAQuotaThatCountsAllOfItsSegments) {
  arena_.reset();
  ArenaOptions options = run_dir_.Options(kBudget);
  options.job_bytes = kBudget / 2;
  arena_ = std::move(Arena::Open(options, Clock::Real()).value());
  Segment* first = Reserve(0, 3, 10 * kMiB);
  ASSERT_NE(first, nullptr);
  ASSERT_TRUE(arena_->RetainSegment(first).ok());
  EXPECT_EQ(arena_->ShortageOf(Owner(1), 2, kMiB), ArenaShortage::kJob);
  auto refused = arena_->Reserve(Owner(1), 2, kMiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  for (const char* part : {"llm/rank-1 needs 5 MiB (2 slots of 2 MiB",
                           "the job has 31 MiB of the 32 MiB", "limits.arena_bytes_per_job"}) {
    EXPECT_THAT(refused.error().message(), HasSubstr(part));
  }
  SegmentOwner roots = Owner(0);
  roots.job = "roots";
  roots.uid = 0;
  EXPECT_TRUE(arena_->Reserve(roots, 2, 10 * kMiB));
  roots.rank = Rank{1};
  EXPECT_FALSE(arena_->Reserve(roots, 2, 10 * kMiB)) << "jobs of root have the quota, too";
  EXPECT_EQ(arena_->usage().of_jobs,
            (std::map<std::string, uint64_t>{{"llm", 31 * kMiB}, {"roots", 21 * kMiB}}));
  // The next agent counts what it adopts.
  arena_.reset();
  arena_ = std::move(Arena::Open(options, Clock::Real()).value());
  EXPECT_FALSE(arena_->Reserve(Owner(1), 2, kMiB));
  ASSERT_TRUE(arena_->Release(arena_->Find("llm", Rank{0})).ok());
  EXPECT_NE(Reserve(1, 2, kMiB), nullptr) << "memory that is free again does not count";
  EXPECT_EQ(arena_->usage().of_jobs.at("llm"), 5 * kMiB);
}

TEST_F(ArenaTest, OnlyJobsWithPriorityGetTheirShare) {
  arena_.reset();
  ArenaOptions options = run_dir_.Options(kBudget);
  options.priority_jobs = {"prod"};
  options.priority_bytes = kBudget / 4;
  arena_ = std::move(Arena::Open(options, Clock::Real()).value());
  EXPECT_TRUE(arena_->HasPriority("prod"));
  EXPECT_FALSE(arena_->HasPriority("llm"));
  ASSERT_NE(Reserve(0, 3, 10 * kMiB), nullptr);
  EXPECT_EQ(arena_->ShortageOf(Owner(1), 2, 9 * kMiB), ArenaShortage::kOrdinary);
  auto refused = arena_->Reserve(Owner(1), 2, 9 * kMiB);
  ASSERT_FALSE(refused);
  for (const char* part : {"needs 21 MiB", "reserved 31 MiB of the 48 MiB", "the arena's 64 MiB",
                           "limits.arena_priority_percent"}) {
    EXPECT_THAT(refused.error().message(), HasSubstr(part));
  }
  const SegmentOwner prod{.job = "prod", .rank = Rank{0}, .uid = 1001};
  ASSERT_TRUE(arena_->Reserve(prod, 2, 10 * kMiB));
  // What such a job has does not count against the others.
  EXPECT_EQ(arena_->ShortageOf(Owner(1), 2, 4 * kMiB), ArenaShortage::kNone);
  EXPECT_EQ(arena_->ShortageOf(prod, 2, 8 * kMiB), ArenaShortage::kArena);
}

TEST_F(ArenaTest, ASecondAgentIsRefused) {
  auto second = Arena::Open(run_dir_.Options(kBudget), Clock::Real());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_THAT(second.error().message(), HasSubstr("another agent uses"));
  ArenaOptions wrong = run_dir_.Options(kBudget);
  wrong.run_dir = run_dir_.path() + "/none";
  EXPECT_EQ(Arena::Open(wrong, Clock::Real()).error().code(), ErrorCode::kNotFound);
  wrong.run_dir = "relative";
  EXPECT_EQ(Arena::Open(wrong, Clock::Real()).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(ArenaTest, TheNextAgentFindsSealedSlotsAndFreesLeasedOnes) {
  Segment* segment = Reserve(0);
  uint64_t id = segment->id();
  uint32_t sealed = *SaveImage(*segment, Version(3, 120), 2 * kMiB);
  uint32_t leased = *segment->Lease(Version(3, 121), 4, 100);
  Reserve(1);
  Reopen();
  segment = arena_->Find("llm", Rank{0});
  ASSERT_NE(segment, nullptr);
  EXPECT_EQ(segment->id(), id);
  ExpectSealed(*segment, sealed, Version(3, 120));
  EXPECT_EQ(segment->record(leased).state, SlotState::kFree);
  EXPECT_EQ(arena_->usage().segments, 2U);
  EXPECT_EQ(arena_->usage().reserved_bytes, 14 * kMiB);
  EXPECT_EQ(Reserve(0), segment);
  ASSERT_TRUE(arena_->Release(segment).ok());
  Reopen();
  EXPECT_EQ(arena_->Find("llm", Rank{0}), nullptr);
  EXPECT_EQ(arena_->usage().reserved_bytes, 7 * kMiB);
}

TEST_F(ArenaTest, ALowerBudgetKeepsExistingSegmentsAndReservesNoMore) {
  SaveImage(*Reserve(0), Version(1, 1), 1000).value();
  Reopen(4 * kMiB);
  ExpectSealed(*arena_->Find("llm", Rank{0}), 0, Version(1, 1));
  EXPECT_EQ(arena_->Reserve(Owner(1), 1, kMiB).error().code(), ErrorCode::kResourceExhausted);
}

TEST_F(ArenaTest, ADeadKeeperIsReplacedAndHoldsEverySegmentAgain) {
  Segment* segment = Reserve(0);
  SaveImage(*segment, Version(1, 7), 5000).value();
  EXPECT_TRUE(arena_->EnsureKeeper().ok());
  pid_t old_keeper = run_dir_.KeeperPid();
  run_dir_.KillKeeper();
  Status status = arena_->EnsureKeeper();
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_NE(run_dir_.KeeperPid(), old_keeper);
  Reopen();
  segment = arena_->Find("llm", Rank{0});
  ASSERT_NE(segment, nullptr);
  ExpectSealed(*segment, 0, Version(1, 7));

  run_dir_.KillKeeper();
  EXPECT_NE(Reserve(1), nullptr) << "reserving starts a new keeper";
  run_dir_.KillKeeper();
  EXPECT_TRUE(arena_->Release(arena_->Find("llm", Rank{1})).ok()) << "and releasing does, too";
  Reopen();
  ExpectSealed(*arena_->Find("llm", Rank{0}), 0, Version(1, 7));
  EXPECT_EQ(arena_->Find("llm", Rank{1}), nullptr);
}

TEST_F(ArenaTest, WhenAgentAndKeeperDieTheMemoryIsLost) {
  uint64_t id = Reserve(0)->id();
  run_dir_.KillKeeper();
  Reopen();
  EXPECT_EQ(arena_->Find("llm", Rank{0}), nullptr);
  EXPECT_EQ(arena_->usage().reserved_bytes, 0U);
  EXPECT_NE(Reserve(0)->id(), id) << "a new ID shows trainers that their mapping is void";
}

TEST_F(ArenaTest, AnEntryWithoutASegmentIsDroppedAtTheKeeper) {
  Reserve(0);
  auto keeper = KeeperClient::Connect(run_dir_.path(), Clock::Real());
  UniqueFd fd(::memfd_create("stray", MFD_CLOEXEC));
  int fds[1] = {fd.get()};
  ASSERT_TRUE(keeper->Put("segment-stray", "", fds).ok());
  ASSERT_TRUE(arena_->EnsureKeeper().ok());
  EXPECT_EQ(keeper->Usage()->entries, 1U);
}

/// Maps the ledger that the keeper holds.
struct KeptLedger {
  KeptLedger(const std::string& run_dir) {
    auto keeper = KeeperClient::Connect(run_dir, Clock::Real());
    entry = **keeper->Next("");
    memory = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, entry.fds[1].get(), 0);
  }
  ~KeptLedger() { ::munmap(memory, 8192); }
  unsigned char& operator[](size_t at) { return static_cast<unsigned char*>(memory)[at]; }
  KeptEntry entry;
  void* memory = nullptr;
};

TEST_F(ArenaTest, ADamagedLedgerIsReleasedAndADamagedSlotIsFree) {
  Segment* segment = Reserve(0);
  SaveImage(*segment, Version(1, 1), 1000).value();
  SaveImage(*segment, Version(1, 2), 1000).value();
  KeptLedger(run_dir_.path())[4096 + 8] ^= 1;  // the incarnation in slot 0
  EXPECT_EQ(segment->seal(0).error().code(), ErrorCode::kDataLoss);
  Reopen();
  segment = arena_->Find("llm", Rank{0});
  ASSERT_NE(segment, nullptr);
  EXPECT_EQ(segment->record(0).state, SlotState::kFree);
  ExpectSealed(*segment, 1, Version(1, 2));

  KeptLedger(run_dir_.path())[24] ^= 1;  // in the header
  Reopen();
  EXPECT_EQ(arena_->Find("llm", Rank{0}), nullptr);
  EXPECT_EQ(arena_->usage().reserved_bytes, 0U);
  EXPECT_EQ(KeeperClient::Connect(run_dir_.path(), Clock::Real())->Usage()->entries, 0U);
}

TEST_F(ArenaTest, ANewerLedgerIsRefusedAndKept) {
  Reserve(0);
  KeptLedger(run_dir_.path())[8] = kLedgerFormat + 1;
  arena_.reset();
  auto older = Arena::Open(run_dir_.Options(kBudget), Clock::Real());
  ASSERT_FALSE(older);
  EXPECT_EQ(older.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(older.error().message(), HasSubstr("llm/rank-0"));
  EXPECT_THAT(older.error().message(), HasSubstr("start the newer release"));
  EXPECT_EQ(KeeperClient::Connect(run_dir_.path(), Clock::Real())->Usage()->entries, 1U);
}

// A trainer gets only the descriptor of its segment. With it, the trainer can damage its own images
// and its own progress, and nothing else.
TEST_F(ArenaTest, AHostileTrainerHarmsOnlyItself) {
  Segment* mine = Reserve(0);
  Segment* other = Reserve(1);
  SaveImage(*other, Version(1, 1), 2 * kMiB).value();
  uint32_t slot = *SaveImage(*mine, Version(1, 1), 1000);
  ShardSeal seal = *mine->seal(slot);
  auto listener = ListenUnix(run_dir_.path() + "/agent.sock", 0600, Clock::Real());
  pid_t child = ::fork();
  if (child == 0) {
    auto agent = ConnectUnix(run_dir_.path() + "/agent.sock");
    auto packet = AwaitPacket(agent->get(), 16, 20'000, Clock::Real());
    if (!packet || packet->fds.size() != 1) ::_exit(1);
    int fd = packet->fds[0].get();
    for (off_t size : {off_t{0}, off_t{4096}, off_t{1} << 30}) {
      if (::ftruncate(fd, size) == 0 || errno != EPERM) ::_exit(2);
    }
    size_t bytes = kControlBytes + 3 * 2 * kMiB;
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) ::_exit(3);
    std::memset(memory, 0xFF, bytes);
    // Holes may be punched: reading them gives zeros, not SIGBUS.
    ::madvise(memory, bytes, MADV_REMOVE);
    std::memset(memory, 0xFF, kControlBytes);
    ::_exit(0);
  }
  Result<std::optional<UniqueFd>> server = AcceptUnix(listener->get());
  while (server && !server->has_value()) {
    Clock::Real().SleepFor(std::chrono::milliseconds(1));
    server = AcceptUnix(listener->get());
  }
  int fd = mine->fd();
  std::byte byte{1};
  ASSERT_TRUE(SendPacket((*server)->get(), {&byte, 1}, {&fd, 1}).ok());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);

  EXPECT_EQ(mine->record(slot).state, SlotState::kSealed);
  EXPECT_EQ(*mine->seal(slot), seal) << "the trainer cannot reach the ledger";
  EXPECT_EQ(FirstBadChunk(mine->slot(slot).first(1000), seal.chunk_crcs), 0U)
      << "the checksums show the damage";
  EXPECT_EQ(AwaitProgress(mine->progress(0), 5, 0, Clock::Real()), ~0ULL)
      << "a hint that the caller bounds";
  ExpectSealed(*other, 0, Version(1, 1));
  uint32_t next = *mine->Lease(Version(1, 2), 4, 100);
  EXPECT_EQ(mine->progress(next).copied, 0U);
  EXPECT_TRUE(mine->Abandon(next).ok());
  Reopen();
  EXPECT_EQ(*arena_->Find("llm", Rank{0})->seal(slot), seal);
}

}  // namespace
}  // namespace holdfast::agent
