// The contract of TierStore, for every tier that has one: the disks of a node and tier remote, on a
// simulated disk and on a real file system.

#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <functional>

#include "tests/storage/tiers/sim_root.h"

namespace holdfast {
namespace {

constexpr uint64_t kData = 2'500'000;  // three chunks
constexpr uint64_t kSmall = 700;

/// Opens one tier. After Reopen() the store has lost all that was not durable.
class Bench {
 public:
  virtual ~Bench() = default;
  virtual std::unique_ptr<TierStore> Open() = 0;
  virtual void LosePower() {}
  virtual SimDisk* disk() { return nullptr; }
  /// Returns the folder on a real file system; empty: simulated.
  virtual std::string folder() { return ""; }
  /// Flips one bit of the shard's data.
  virtual void Damage(const ShardKey& key) = 0;

  JobAccess access;  // for the next Open()
};

void FlipIn(std::vector<std::byte>& bytes) { bytes[bytes.size() / 2] ^= std::byte{0x10}; }

bool IsDataOf(const std::string& file, const ShardKey& key) {
  return file.find("v" + ToString(key.version)) != std::string::npos &&
         file.find(ShardName(key.rank) + ".safetensors") != std::string::npos;
}

class SimBench : public Bench {
 public:
  void LosePower() override { disk_.Crash(SimSurvival::kNothing); }
  SimDisk* disk() override { return &disk_; }
  void Damage(const ShardKey& key) override {
    for (const std::string& file : disk_.Files()) {
      if (!IsDataOf(file, key)) continue;
      EXPECT_STATUS_OK(disk_.Damage(file, FlipIn));
    }
  }

 protected:
  SimDisk disk_{SimDiskOptions{.seed = 7, .operation_bytes = 16384}};
};

class SimDiskTier final : public SimBench {
 public:
  std::unique_ptr<TierStore> Open() override { return *OpenSim(disk_, 1); }
};

class SimRemoteTier final : public SimBench {
 public:
  std::unique_ptr<TierStore> Open() override { return RemoteOn(disk_); }
};

class RealBench : public Bench {
 public:
  std::string folder() override { return folder_.path(); }
  void Damage(const ShardKey& key) override {
    for (const std::string& file : FilesBeneath(folder_.path())) {
      const std::string path = folder_.path() + "/" + file;
      if (IsDataOf(file, key)) FlipBit(path, std::filesystem::file_size(path) / 2);
    }
  }

 protected:
  TempFolder folder_;
};

class RealDiskTier final : public RealBench {
 public:
  std::unique_ptr<TierStore> Open() override {
    VolumeOptions options = TestOptions();
    options.access = access;
    return *OpenReal(folder_.Dirs(1), options);
  }
};

class RealRemoteTier final : public RealBench {
 public:
  std::unique_ptr<TierStore> Open() override {
    RemoteOptions options = RemoteTestOptions();
    options.access = access;
    auto store = std::make_unique<RemoteDirectory>(FileSystemRoot(folder_.path(), options.io),
                                                   options, Clock::Real());
    store->SetLife(kLife);
    return store;
  }
};

struct TierCase {
  const char* name;
  std::unique_ptr<Bench> (*make)();
};
template <typename Tier>
std::unique_ptr<Bench> Make() {
  return std::make_unique<Tier>();
}

class TierContractTest : public ::testing::TestWithParam<TierCase> {
 protected:
  void SetUp() override { store_ = bench_->Open(); }
  void Reopen() {
    store_.reset();
    bench_->LosePower();
    store_ = bench_->Open();
  }

  std::unique_ptr<Bench> bench_ = GetParam().make();
  std::unique_ptr<TierStore> store_;
  TestImage a_{Shard(1, 10, 0), kData};
  TestImage b_{Shard(1, 10, 1), kSmall};
  TestImage newer_{Shard(1, 20, 0), kSmall};
};

TEST_P(TierContractTest, APublishedShardIsListedReadAndVerified) {
  ASSERT_STATUS_OK(WriteTo(*store_, b_));
  ASSERT_STATUS_OK(WriteTo(*store_, newer_));
  ASSERT_STATUS_OK(WriteTo(*store_, a_));
  const auto listed = store_->ListJob("job");
  ASSERT_TRUE(listed);
  ASSERT_EQ(listed->size(), 3U);
  EXPECT_EQ((*listed)[0].identity, a_.identity);
  EXPECT_EQ((*listed)[1].identity, b_.identity);
  EXPECT_EQ((*listed)[2].identity, newer_.identity);
  EXPECT_EQ((*listed)[0].digest, a_.Seal().digest());
  EXPECT_EQ((*listed)[0].image_bytes, a_.image.size());
  for (const TestImage* image : {&a_, &b_, &newer_}) {
    ExpectStored(*store_, *image);
    EXPECT_STATUS_OK(store_->VerifyShard(image->identity.key(), false));
    EXPECT_STATUS_OK(store_->VerifyShard(image->identity.key(), true));
  }
  EXPECT_TRUE(store_->ListJob("other")->empty());
}

TEST_P(TierContractTest, APublishedShardSurvivesAPowerCut) {
  ASSERT_STATUS_OK(WriteTo(*store_, a_));
  Reopen();
  ExpectStored(*store_, a_);
}

TEST_P(TierContractTest, AShardThatIsNotPublishedIsNotThere) {
  {
    auto writer = store_->CreateShard(a_.identity, a_.image);
    ASSERT_TRUE(writer);
    ASSERT_STATUS_OK((*writer)->Advance(a_.image.size() / 2));
    EXPECT_EQ(store_->ReadSeal(a_.identity.key()).error().code(), ErrorCode::kNotFound);
    EXPECT_TRUE(store_->ListJob("job")->empty());
  }
  EXPECT_EQ(store_->OpenChunks(a_.identity.key()).error().code(), ErrorCode::kNotFound);
  Reopen();
  EXPECT_TRUE(store_->ListJob("job")->empty());
  ASSERT_STATUS_OK(WriteTo(*store_, a_));
  ExpectStored(*store_, a_);
}

TEST_P(TierContractTest, APublishedShardIsNotReplaced) {
  ASSERT_STATUS_OK(WriteTo(*store_, a_));
  TestImage other(a_.identity, kSmall);
  EXPECT_EQ(WriteTo(*store_, other).code(), ErrorCode::kAlreadyExists);
  ExpectStored(*store_, a_);
}

TEST_P(TierContractTest, ASealOfAnotherShardIsRefused) {
  auto writer = store_->CreateShard(a_.identity, a_.image);
  ASSERT_TRUE(writer);
  EXPECT_FALSE((*writer)->Publish(b_.Seal()).ok());
  writer->reset();
  EXPECT_TRUE(store_->ListJob("job")->empty());
}

TEST_P(TierContractTest, ARemovedVersionIsGoneAndOthersStay) {
  ASSERT_STATUS_OK(WriteTo(*store_, a_));
  ASSERT_STATUS_OK(WriteTo(*store_, b_));
  ASSERT_STATUS_OK(WriteTo(*store_, newer_));
  ASSERT_STATUS_OK(store_->RemoveVersion("job", a_.identity.version));
  EXPECT_EQ(store_->ReadSeal(a_.identity.key()).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(store_->ReadSeal(b_.identity.key()).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(store_->RemoveVersion("job", a_.identity.version).code(), ErrorCode::kNotFound);
  EXPECT_EQ(store_->RemoveVersion("other", a_.identity.version).code(), ErrorCode::kNotFound);
  Reopen();
  ASSERT_EQ(store_->ListJob("job")->size(), 1U);
  ExpectStored(*store_, newer_);
}

TEST_P(TierContractTest, ADamagedShardIsNamedAndQuarantined) {
  ASSERT_STATUS_OK(WriteTo(*store_, a_));
  bench_->Damage(a_.identity.key());
  EXPECT_EQ(store_->VerifyShard(a_.identity.key(), true).code(), ErrorCode::kDataLoss);
  auto chunks = store_->OpenChunks(a_.identity.key());
  ASSERT_TRUE(chunks);
  int bad = 0;
  for (uint64_t i = 0; i < (*chunks)->seal().chunk_crcs.size(); ++i) {
    const auto chunk = (*chunks)->Read(i);
    if (!chunk) {
      EXPECT_EQ(chunk.error().code(), ErrorCode::kDataLoss);
    }
    bad += chunk ? 0 : 1;
  }
  EXPECT_EQ(bad, 1);
  ASSERT_STATUS_OK(store_->Quarantine(a_.identity.key(), "a test"));
  EXPECT_EQ(store_->ReadSeal(a_.identity.key()).error().code(), ErrorCode::kNotFound);
  ASSERT_STATUS_OK(WriteTo(*store_, a_));
  ExpectStored(*store_, a_);
}

TEST_P(TierContractTest, NamesThatAreNoJobsAreRefused) {
  EXPECT_FALSE(store_->ListJob("../job").has_value() && !store_->ListJob("../job")->empty());
  EXPECT_FALSE(store_->RemoveVersion("..", a_.identity.version).ok());
  TestImage foreign(Shard(1, 1, 0, "job"), kSmall);
  foreign.identity.job = "../escape";
  EXPECT_FALSE(store_->CreateShard(foreign.identity, foreign.image).has_value());
}

TEST_P(TierContractTest, AFailedWritePublishesNothingAndTheNextOneSucceeds) {
  SimDisk* disk = bench_->disk();
  if (disk == nullptr) GTEST_SKIP() << "only simulated disks fail on demand";
  ASSERT_STATUS_OK(WriteTo(*store_, newer_));
  int failed = 0;
  for (SimOp op : {SimOp::kCreate, SimOp::kWrite, SimOp::kTruncate, SimOp::kSync, SimOp::kRename,
                   SimOp::kSyncDirectory}) {
    for (SimEffect effect : {SimEffect::kIoError, SimEffect::kOutOfSpace}) {
      for (uint64_t skip : {0, 1, 2}) {
        SCOPED_TRACE(static_cast<int>(op) * 100 + static_cast<int>(skip));
        disk->Inject({.op = op, .effect = effect, .skip = skip, .times = 1, .path = {}});
        const Status status = WriteTo(*store_, a_);
        disk->ClearFaults();
        if (status.ok()) {
          ASSERT_STATUS_OK(store_->RemoveVersion("job", a_.identity.version));
          continue;
        }
        ++failed;
        EXPECT_EQ(status.code(),
                  effect == SimEffect::kIoError ? ErrorCode::kIoError : ErrorCode::kOutOfSpace);
        EXPECT_EQ(store_->ReadSeal(a_.identity.key()).error().code(), ErrorCode::kNotFound);
      }
    }
  }
  EXPECT_GT(failed, 20);
  ASSERT_STATUS_OK(WriteTo(*store_, a_));
  Reopen();
  ExpectStored(*store_, a_);
  ExpectStored(*store_, newer_);
}

TEST_P(TierContractTest, APowerCutAtAnyStepLeavesACompleteShardOrNone) {
  SimDisk* disk = bench_->disk();
  if (disk == nullptr) GTEST_SKIP() << "only simulated disks lose power";
  bool published = false;
  for (uint64_t step = 0; !published && step < 400; ++step) {
    SCOPED_TRACE(step);
    disk->CrashAfterOperations(step);
    published = WriteTo(*store_, b_).ok() && !disk->crashed();
    store_.reset();
    disk->Crash(SimSurvival::kRandom);
    store_ = bench_->Open();
    const auto seal = store_->ReadSeal(b_.identity.key());
    if (published) {
      ASSERT_TRUE(seal) << StatusOf(seal).ToString();
    }
    if (!seal) {
      // A tier that was never written to is not there.
      EXPECT_TRUE(seal.error().code() == ErrorCode::kNotFound ||
                  seal.error().code() == ErrorCode::kUnavailable)
          << seal.error().ToString();
      continue;
    }
    ExpectStored(*store_, b_);
    ASSERT_STATUS_OK(store_->RemoveVersion("job", b_.identity.version));
    published = false;
    if (step > 200) break;
  }
}

/// Removes a capability from this thread, as of an agent that does not have it.
class WithoutCapability {
 public:
  explicit WithoutCapability(int capability) {
    ::syscall(SYS_capget, &header_, before_.data());
    auto less = before_;
    less[0].effective &= ~CAP_TO_MASK(capability);
    EXPECT_EQ(::syscall(SYS_capset, &header_, less.data()), 0);
  }
  ~WithoutCapability() { EXPECT_EQ(::syscall(SYS_capset, &header_, before_.data()), 0); }

 private:
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> before_{};
};

TEST_P(TierContractTest, TheFilesOfAShardBelongToTheUserOfTheirJob) {
  if (bench_->folder().empty()) GTEST_SKIP() << "the simulated disk has one user";
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  constexpr uid_t kOwner = 65'534;
  constexpr gid_t kGroup = 60;
  bench_->access = [](const std::string& job) {
    return job == "job" ? FileAccess{kOwner, kGroup} : FileAccess{};
  };
  Reopen();
  const TestImage other{Shard(1, 10, 0, "other"), kData};
  ASSERT_STATUS_OK(WriteTo(*store_, a_));
  ASSERT_STATUS_OK(WriteTo(*store_, other));
  const TestImage refused{Shard(1, 30, 0), kData};
  {
    WithoutCapability chown(CAP_CHOWN);
    ASSERT_STATUS_OK(WriteTo(*store_, refused));
  }
  size_t files = 0;
  for (const std::string& file : FilesBeneath(bench_->folder())) {
    const bool kept =
        file.find("other/") != std::string::npos || file.find("v1-30/") != std::string::npos;
    if (!kept && file.find("job/") == std::string::npos) continue;
    struct stat info {};
    ASSERT_EQ(::stat((bench_->folder() + "/" + file).c_str(), &info), 0) << file;
    EXPECT_EQ(info.st_uid, kept ? 0 : kOwner) << file;
    EXPECT_EQ(info.st_gid, kept ? ::getegid() : kGroup) << file;
    EXPECT_TRUE(kept || (info.st_mode & 07777U) == 0640U) << file;
    const std::string folder = std::filesystem::path(bench_->folder() + "/" + file).parent_path();
    ASSERT_EQ(::stat(folder.c_str(), &info), 0) << folder;
    EXPECT_EQ(info.st_uid, 0U) << folder;
    EXPECT_TRUE(kept || (info.st_mode & 07777U) == 0750U) << folder;
    ++files;
  }
  EXPECT_EQ(files, 6U);
  // The process that gave the files away reads and removes them.
  Reopen();
  for (const TestImage* image : std::initializer_list<const TestImage*>{&a_, &other, &refused}) {
    ExpectStored(*store_, *image);
    EXPECT_STATUS_OK(store_->VerifyShard(image->identity.key(), true));
  }
  EXPECT_STATUS_OK(store_->RemoveVersion("job", a_.identity.version));
}

INSTANTIATE_TEST_SUITE_P(Tiers, TierContractTest,
                         ::testing::Values(TierCase{"Disk", Make<SimDiskTier>},
                                           TierCase{"Remote", Make<SimRemoteTier>},
                                           TierCase{"RealDisk", Make<RealDiskTier>},
                                           TierCase{"RealRemote", Make<RealRemoteTier>}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace holdfast
