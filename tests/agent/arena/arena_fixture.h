#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "agent/arena/arena.h"
#include "agent/arena/keeper_client.h"
#include "base/clock.h"
#include "base/random.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {

inline constexpr uint64_t kMiB = 1ULL << 20;

/// A temporary run directory with the real keeper binary. The destructor ends its keepers.
class RunDir {
 public:
  RunDir() {
    std::string pattern = std::filesystem::temp_directory_path() / "holdfast-arena-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~RunDir() {
    // Twice: a caller that lost the race may have started a keeper that replaces the first one.
    for (int i = 0; i < 2; ++i) {
      pid_t pid = KeeperPid();
      if (pid == 0) break;
      ::kill(pid, SIGTERM);
      AwaitExit(pid);
    }
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  RunDir(const RunDir&) = delete;
  RunDir& operator=(const RunDir&) = delete;

  const std::string& path() const { return path_; }
  static std::string KeeperBinary() {
    const char* folder = std::getenv("HOLDFAST_BIN_DIR");
    if (folder != nullptr) return std::string(folder) + "/holdfast-keeper";
    auto tests = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    return tests.parent_path() / "bin" / "holdfast-keeper";
  }
  ArenaOptions Options(uint64_t budget_bytes) const {
    return {.budget_bytes = budget_bytes, .run_dir = path_, .keeper_binary = KeeperBinary()};
  }
  std::unique_ptr<Arena> Open(uint64_t budget_bytes) const {
    auto arena = Arena::Open(Options(budget_bytes), Clock::Real());
    EXPECT_TRUE(arena) << arena.error().ToString();
    return arena ? *std::move(arena) : nullptr;
  }
  pid_t KeeperPid() const {
    auto keeper = KeeperClient::Connect(path_, Clock::Real());
    auto usage = keeper ? keeper->Usage() : Result<KeeperUsage>(Fail(keeper.error()));
    return usage ? usage->pid : 0;
  }
  /// Kills the keeper with SIGKILL and waits until the process has exited.
  void KillKeeper() const {
    pid_t pid = KeeperPid();
    ASSERT_GT(pid, 1);
    ::kill(pid, SIGKILL);
    AwaitExit(pid);
  }
  /// Waits until process `pid`, which is no child of this process, has exited; a zombie counts.
  static bool AwaitExit(pid_t pid) {
    Clock& clock = Clock::Real();
    for (int i = 0; i < 4000; ++i) {
      std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
      std::string stat;
      if (!std::getline(file, stat)) return true;
      if (stat.find(") Z ") != std::string::npos) return true;
      clock.SleepFor(std::chrono::milliseconds(5));
    }
    return false;
  }

 private:
  std::string path_;
};

/// Fills `image` with bytes that are specific to (version, rank), at any length.
inline void FillImage(std::span<std::byte> image, VersionId version, Rank rank) {
  Random random(version.incarnation.value * 1'000'003 + version.step.value * 4099 + rank.value);
  size_t i = 0;
  for (; i + 8 <= image.size(); i += 8) {
    uint64_t word = random.Next();
    std::memcpy(image.data() + i, &word, 8);
  }
  for (; i < image.size(); ++i) image[i] = static_cast<std::byte>(random.Next());
}

inline bool HoldsImage(std::span<const std::byte> image, VersionId version, Rank rank) {
  std::vector<std::byte> expected(image.size());
  FillImage(expected, version, rank);
  return std::memcmp(image.data(), expected.data(), image.size()) == 0;
}

inline ShardSeal SealOf(std::span<const std::byte> image, const SegmentOwner& owner,
                        VersionId version, uint32_t world) {
  ShardSeal seal;
  seal.identity = {.job = owner.job, .version = version, .rank = owner.rank, .world = world};
  seal.image_bytes = image.size();
  for (size_t at = 0; at < image.size(); at += kChunkBytes) {
    seal.chunk_crcs.push_back(
        Crc32c(image.subspan(at, std::min<size_t>(kChunkBytes, image.size() - at))));
  }
  seal.wall_nanos = 1'700'000'000'000'000'000 + static_cast<int64_t>(version.step.value);
  return seal;
}

inline VersionId Version(uint64_t incarnation, uint64_t step) {
  return {Incarnation{incarnation}, Step{step}};
}

/// Leases, fills and seals one slot; returns its index.
inline Result<uint32_t> SaveImage(Segment& segment, VersionId version, uint64_t image_bytes) {
  HOLDFAST_ASSIGN_OR_RETURN(uint32_t slot, segment.Lease(version, 4, image_bytes));
  auto image = segment.slot(slot).first(image_bytes);
  FillImage(image, version, segment.owner().rank);
  HOLDFAST_RETURN_IF_ERROR(segment.Seal(slot, SealOf(image, segment.owner(), version, 4)));
  return slot;
}

}  // namespace holdfast::agent
