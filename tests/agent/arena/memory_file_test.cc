#include "agent/arena/memory_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "agent/arena/allocation.h"
#include "agent/arena/headroom.h"

namespace holdfast::agent {
namespace {
using ::testing::HasSubstr;

TEST(MemoryFileTest, IsFullyAllocatedAndCannotBeResized) {
  constexpr uint64_t kBytes = 3ULL << 20;
  auto file = MemoryFile::Create("test", kBytes);
  ASSERT_TRUE(file) << file.error().ToString();
  struct stat info {};
  ASSERT_EQ(::fstat(file->fd(), &info), 0);
  EXPECT_EQ(static_cast<uint64_t>(info.st_size), kBytes);
  EXPECT_GE(static_cast<uint64_t>(info.st_blocks) * 512, kBytes) << "the file must not be sparse";
  for (off_t size : {off_t{0}, off_t{1} << 20, off_t{4} << 20}) {
    EXPECT_EQ(::ftruncate(file->fd(), size), -1);
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_EQ(::fcntl(file->fd(), F_ADD_SEALS, F_SEAL_WRITE), -1) << "no further seals can be added";
  EXPECT_EQ(::fcntl(file->fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  file->memory().back() = std::byte{7};

  auto same = MemoryFile::Adopt(UniqueFd(::dup(file->fd())));
  ASSERT_TRUE(same) << same.error().ToString();
  EXPECT_EQ(same->memory().size(), kBytes);
  EXPECT_EQ(same->memory().back(), std::byte{7});
  EXPECT_NE(same->memory().data(), file->memory().data());
}

TEST(MemoryFileTest, TheBeginningCanBeAllocatedLater) {
  constexpr uint64_t kLater = 8ULL << 20;
  auto file = MemoryFile::Create("test", kLater + 4096, kLater);
  ASSERT_TRUE(file) << file.error().ToString();
  const auto allocated = [&] {
    struct stat info {};
    EXPECT_EQ(::fstat(file->fd(), &info), 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  };
  EXPECT_GE(allocated(), 4096U);
  EXPECT_LT(allocated(), 3ULL << 20);
  ASSERT_TRUE(file->Allocate(2ULL << 20, 5ULL << 20).ok());
  EXPECT_GE(allocated(), (3ULL << 20) + 4096);
  EXPECT_LT(allocated(), kLater);
  ASSERT_TRUE(file->Allocate(0, kLater).ok());
  EXPECT_GE(allocated(), kLater + 4096);
  EXPECT_EQ(::ftruncate(file->fd(), kLater), -1) << "the size is sealed as always";
}

TEST(MemoryFileTest, DoesNotAdoptAFileThatCouldShrink) {
  UniqueFd fd(::memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(fd.get(), 1 << 20), 0);
  ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_EQ(MemoryFile::Adopt(UniqueFd(::dup(fd.get()))).error().code(), ErrorCode::kDataLoss);
  ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(MemoryFile::Adopt(std::move(fd)));
  EXPECT_EQ(MemoryFile::Adopt(UniqueFd(::open("/dev/null", O_RDWR))).error().code(),
            ErrorCode::kDataLoss);
}

TEST(MemoryFileTest, MoreThanTheMachineHasIsRefusedWithNumbers) {
  MemoryHeadroom headroom = AvailableMemory();
  ASSERT_GT(headroom.bytes, 0U);
  ASSERT_LT(headroom.bytes, 1ULL << 60);
  auto file = MemoryFile::Create("test", 1ULL << 50);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(file.error().message(), HasSubstr("1 PiB"));
  EXPECT_THAT(file.error().message(), HasSubstr("are available ("));
}

/// Runs `body` in a child process and returns its exit code.
template <typename Body>
int InChild(Body body) {
  pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// A shared memory file that is mapped, but not allocated.
struct Sparse {
  explicit Sparse(UniqueFd file, uint64_t bytes) : fd(std::move(file)) {
    EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    EXPECT_NE(address, MAP_FAILED);
    memory = {static_cast<std::byte*>(address), bytes};
  }
  ~Sparse() { ::munmap(memory.data(), memory.size()); }
  uint64_t allocated() const {
    struct stat info {};
    EXPECT_EQ(::fstat(fd.get(), &info), 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  }
  UniqueFd fd;
  std::span<std::byte> memory;
};

TEST(AllocationTest, AllOfALargeRangeIsAllocatedOnce) {
  constexpr uint64_t kBegin = 2ULL << 20;
  // Not a multiple of a step, of a huge page or of a page.
  constexpr uint64_t kEnd = kBegin + 5 * Allocation::kStepBytes + 3 * 4096 + 5;
  Sparse file(UniqueFd(::memfd_create("test", MFD_CLOEXEC)), kEnd + kBegin);
  ASSERT_TRUE(Allocation(file.fd.get(), file.memory, kBegin, kEnd).Run().ok());
  EXPECT_EQ(file.allocated(), kEnd - kBegin + 4096 - 5) << "all pages, and no others";
  ASSERT_TRUE(Allocation(file.fd.get(), file.memory, kBegin, kEnd).Run().ok());
  EXPECT_EQ(file.allocated(), kEnd - kBegin + 4096 - 5);
}

TEST(AllocationTest, AFailureAmongTheStepsIsTheResult) {
  constexpr uint64_t kGood = 3 * Allocation::kStepBytes;
  // The steps beyond the sealed size fail: all of them, or only the last of the range.
  for (const uint64_t bad : {3, 1}) {
    Sparse file(UniqueFd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)), kGood);
    ASSERT_EQ(::fcntl(file.fd.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
    const uint64_t end = kGood + bad * Allocation::kStepBytes;
    const Status status = Allocation(file.fd.get(), file.memory, 0, end).Run();
    ASSERT_FALSE(status.ok()) << bad;
    EXPECT_THAT(status.message(), HasSubstr(fmt::format("allocate {} MiB of shared", end >> 20)));
    EXPECT_THAT(status.message(), HasSubstr("Operation not permitted"));
    EXPECT_EQ(file.allocated(), kGood) << "every step that could be allocated was";
  }
}

TEST(AllocationTest, AFullFileSystemInTheMiddleIsAnErrorWithNumbers) {
  std::string folder = std::filesystem::temp_directory_path() / "holdfast-allocation-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const int code = InChild([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("test", folder.c_str(), "tmpfs", 0, "size=300m") != 0) {
      return 77;
    }
    Sparse file(UniqueFd(::open((folder + "/file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)),
                10 * Allocation::kStepBytes);
    const Status full =
        Allocation(file.fd.get(), file.memory, 0, 10 * Allocation::kStepBytes).Run();
    if (full.code() != ErrorCode::kResourceExhausted) return 2;
    if (full.message().find(
            " of the 640 MiB for a segment: the shared memory file system is full") ==
        std::string::npos) {
      return 3;
    }
    // With more room, the same range is allocated completely.
    if (::mount("test", folder.c_str(), "tmpfs", MS_REMOUNT, "size=700m") != 0) return 4;
    if (!Allocation(file.fd.get(), file.memory, 0, 10 * Allocation::kStepBytes).Run().ok())
      return 5;
    return file.allocated() == 10 * Allocation::kStepBytes ? 0 : 6;
  });
  std::filesystem::remove(folder);
  if (code == 77) GTEST_SKIP() << "no permission to mount a file system";
  EXPECT_EQ(code, 0);
}

TEST(MemoryFileTest, TheFileSizeLimitIsAnErrorNotASignal) {
  EXPECT_EQ(InChild([] {
              rlimit limit{.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
              if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
              auto file = MemoryFile::Create("test", 2 << 20);
              if (file || file.error().code() != ErrorCode::kResourceExhausted) return 3;
              return file.error().message().find("ulimit -f") == std::string::npos ? 4 : 0;
            }),
            0);
}

TEST(MemoryFileTest, ACgroupsLimitIsAnErrorBeforeItsOomKillerActs) {
  namespace fs = std::filesystem;
  fs::path v1 = "/sys/fs/cgroup/memory/holdfast-test-" + std::to_string(::getpid());
  std::error_code error;
  if (!fs::exists("/sys/fs/cgroup/memory/tasks") || !fs::create_directory(v1, error)) {
    GTEST_SKIP() << "needs a writable memory cgroup (v1)";
  }
  std::ofstream(v1 / "memory.limit_in_bytes") << (256 << 20);
  int code = InChild([&] {
    std::ofstream tasks(v1 / "cgroup.procs");
    tasks << ::getpid() << std::flush;
    if (!tasks) return 2;
    auto file = MemoryFile::Create("test", 512ULL << 20);
    if (file || file.error().code() != ErrorCode::kResourceExhausted) return 3;
    if (file.error().message().find("memory limit of cgroup") == std::string::npos) return 4;
    return MemoryFile::Create("test", 64ULL << 20) ? 0 : 5;
  });
  fs::remove(v1, error);
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace holdfast::agent
