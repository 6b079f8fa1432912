#include "cli/doctor/host_checks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/io_uring.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/config.h"
#include "base/fd.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

namespace holdfast::cli {
namespace {

constexpr uint64_t kHugeBytes = 2ULL << 20;
constexpr uint64_t kUnlimited = UINT64_MAX;
// The agent needs openat2(), which keeps paths beneath their directory: Linux 5.6 or later.
constexpr int kOldestKernel[] = {5, 6};
// An agent has a few files for each rank and connection.
constexpr uint64_t kOpenFilesMin = 1024;
constexpr uint64_t kOpenFilesGood = 16'384;
constexpr uint64_t kShmGood = 1ULL << 30;
constexpr uint64_t kShmFreeMin = 16ULL << 20;

/// `unit_key`: "LimitNOFILE=1048576"; `shell`: the command that does the same in a shell.
std::string LimitRemedy(const LimitedProcess& process, std::string_view unit_key,
                        std::string_view shell) {
  if (process.is_agent()) return fmt::format("set {} in the agent's unit, restart it", unit_key);
  return fmt::format(
      "set {} in the agent's unit, as the package does, or run `{}` in the shell "
      "that starts the agent",
      unit_key, shell);
}

/// Returns a soft limit of the process; nothing when it cannot be read. `name` is as in
/// /proc/PID/limits.
std::optional<uint64_t> SoftLimit(const LimitedProcess& process, const std::string& name) {
  const std::string pid = process.is_agent() ? std::to_string(*process.agent) : "self";
  std::ifstream file("/proc/" + pid + "/limits");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name, 0) != 0) continue;
    std::istringstream words(line.substr(name.size()));
    std::string soft;
    words >> soft;
    if (soft == "unlimited") return kUnlimited;
    uint64_t value = 0;
    std::istringstream number(soft);
    if (number >> value) return value;
  }
  return std::nullopt;
}

std::string Whose(const LimitedProcess& process) {
  return process.is_agent() ? fmt::format("of the agent (process {})", *process.agent)
                            : std::string("of this shell");
}

std::string BytesText(uint64_t bytes) {
  return bytes == kUnlimited ? "unlimited" : FormatBytes(bytes);
}

/// Returns the limit of memory of this process's cgroup (version 2), or kUnlimited.
uint64_t CgroupMemoryMax() {
  std::ifstream own("/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    if (line.rfind("0::", 0) != 0) continue;
    uint64_t least = kUnlimited;
    // A parent's limit holds, too.
    for (std::string path = line.substr(3);; path.resize(path.rfind('/'))) {
      std::ifstream file("/sys/fs/cgroup" + path + "/memory.max");
      uint64_t value = 0;
      if (file >> value) least = std::min(least, value);
      if (path.empty() || path.rfind('/') == std::string::npos) return least;
    }
  }
  return kUnlimited;
}

/// Returns the bytes that processes can still use, from /proc/meminfo; 0 when unknown.
uint64_t AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  uint64_t kib = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    if (words >> key >> kib && key == "MemAvailable:") return kib << 10U;
  }
  return 0;
}

}  // namespace

LimitedProcess FindAgent(const std::string& run_dir) {
  UniqueFd lock(::open((run_dir + "/agent.lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!lock.valid()) return {};
  if (::flock(lock.get(), LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK) return {};
  char text[32] = {};
  if (::pread(lock.get(), text, sizeof(text) - 1, 0) <= 0) return {};
  const long pid = std::strtol(text, nullptr, 10);
  if (pid <= 0 || ::access(fmt::format("/proc/{}", pid).c_str(), F_OK) != 0) return {};
  return {static_cast<pid_t>(pid)};
}

Finding CheckKernel() {
  utsname name{};
  ::uname(&name);
  int major = 0;
  int minor = 0;
  std::sscanf(name.release, "%d.%d", &major, &minor);
  Finding finding{"kernel", Readiness::kOk, fmt::format("Linux {}", name.release), ""};
  if (std::pair(major, minor) < std::pair(kOldestKernel[0], kOldestKernel[1])) {
    finding.readiness = Readiness::kFail;
    finding.what += fmt::format(" is older than {}.{}", kOldestKernel[0], kOldestKernel[1]);
    finding.remedy = "install a newer kernel; 6.1 or later also gives slots huge pages";
  }
  return finding;
}

Finding CheckIoUring(bool wanted) {
  Finding finding{"io_uring", Readiness::kOk, "allowed", ""};
  if (!wanted) {
    finding.readiness = Readiness::kSkipped;
    finding.what = "io.io_uring = false";
    return finding;
  }
  io_uring_params parameters{};
  const UniqueFd ring(static_cast<int>(::syscall(SYS_io_uring_setup, 4, &parameters)));
  if (ring.valid()) return finding;
  finding.readiness = Readiness::kWarn;
  finding.what = fmt::format("refused ({}): writes to disk are slower", std::strerror(errno));
  finding.remedy =
      "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile, and "
      "sysctl kernel.io_uring_disabled=0; or set io.io_uring = false";
  return finding;
}

Finding CheckHugePages() {
  Finding finding{"huge pages", Readiness::kOk, "slots get huge pages", ""};
  const UniqueFd file(::memfd_create("holdfast-doctor", MFD_CLOEXEC));
  void* const memory = ::mmap(nullptr, 2 * kHugeBytes, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (!file.valid() || memory == MAP_FAILED || ::ftruncate(file.get(), kHugeBytes) != 0) {
    return {"huge pages", Readiness::kUnknown, "no memory to test them with",
            "free some memory and repeat"};
  }
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  auto* const aligned =
      reinterpret_cast<std::byte*>((begin + kHugeBytes - 1) / kHugeBytes * kHugeBytes);
  void* const mapped =
      ::mmap(aligned, kHugeBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0);
  int error = mapped == MAP_FAILED ? errno : 0;
  if (error == 0) {
    *aligned = std::byte{1};
    if (::madvise(aligned, kHugeBytes, MADV_COLLAPSE) != 0) error = errno;
  }
  ::munmap(memory, 2 * kHugeBytes);
  if (error == 0) return finding;
  finding.readiness = Readiness::kWarn;
  finding.what = fmt::format(
      "slots get 4 KiB pages ({}): registering memory and direct I/O take "
      "more time",
      std::strerror(error));
  finding.remedy =
      "use Linux 6.1 or later with CONFIG_TRANSPARENT_HUGEPAGE, without transparent_hugepage=never "
      "on its command line";
  return finding;
}

Finding CheckMemlock(const LimitedProcess& process, uint64_t arena_bytes) {
  const auto limit = SoftLimit(process, "Max locked memory");
  if (!limit) {
    return {"locked memory", Readiness::kUnknown, "the limit " + Whose(process) + " is unreadable",
            "run this command as root or as the agent's user"};
  }
  Finding finding{"locked memory", Readiness::kOk,
                  fmt::format("limit {}: {}", Whose(process), BytesText(*limit)), ""};
  // A process of root with CAP_IPC_LOCK has no limit; a unit's agent has no capabilities.
  if (*limit >= arena_bytes) return finding;
  finding.readiness = Readiness::kWarn;
  finding.what +=
      fmt::format(", less than the arena of {}: io_uring cannot pin it", FormatBytes(arena_bytes));
  finding.remedy = LimitRemedy(process, "LimitMEMLOCK=infinity", "ulimit -l unlimited");
  return finding;
}

Finding CheckOpenFiles(const LimitedProcess& process) {
  const auto limit = SoftLimit(process, "Max open files");
  if (!limit) {
    return {"open files", Readiness::kUnknown, "the limit " + Whose(process) + " is unreadable",
            "run this command as root or as the agent's user"};
  }
  Finding finding{"open files", Readiness::kOk,
                  *limit == kUnlimited ? fmt::format("limit {}: unlimited", Whose(process))
                                       : fmt::format("limit {}: {}", Whose(process), *limit),
                  ""};
  if (*limit >= kOpenFilesGood) return finding;
  finding.readiness = *limit < kOpenFilesMin ? Readiness::kFail : Readiness::kWarn;
  finding.what += fmt::format(", less than {}: connections of peers and trainers may fail",
                              *limit < kOpenFilesMin ? kOpenFilesMin : kOpenFilesGood);
  finding.remedy = LimitRemedy(process, "LimitNOFILE=1048576", "ulimit -n 1048576");
  return finding;
}

Finding CheckMemory(const LimitedProcess& process, uint64_t arena_bytes) {
  const uint64_t cgroup = CgroupMemoryMax();
  const uint64_t available = AvailableBytes();
  Finding finding{"memory", Readiness::kOk,
                  fmt::format("{} available for an arena of {}", FormatBytes(available),
                              FormatBytes(arena_bytes)),
                  ""};
  if (cgroup < arena_bytes) {
    finding.readiness = Readiness::kFail;
    finding.what = fmt::format("the cgroup has {} in all, less than the arena of {}",
                               FormatBytes(cgroup), FormatBytes(arena_bytes));
    finding.remedy = "raise the memory limit of the container or unit, or lower arena.bytes";
  } else if (process.is_agent()) {
    finding.what = fmt::format("arena of {} (the agent runs), {} still available",
                               FormatBytes(arena_bytes), FormatBytes(available));
  } else if (available < arena_bytes) {
    finding.readiness = Readiness::kFail;
    finding.what += ": too little";
    finding.remedy = "end what uses the memory (`ps aux --sort -rss`), or lower arena.bytes";
  }
  return finding;
}

Finding CheckSharedMemory(const std::string& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0) {
    return {path, Readiness::kWarn,
            fmt::format("{}: NCCL and data loaders need it", std::strerror(errno)),
            "mount a tmpfs there: mount -t tmpfs shm " + path};
  }
  const uint64_t size = uint64_t{info.f_blocks} * info.f_frsize;
  const uint64_t free = uint64_t{info.f_bavail} * info.f_frsize;
  Finding finding{path, Readiness::kOk,
                  fmt::format("{} of {} free", FormatBytes(free), FormatBytes(size)), ""};
  if (free < kShmFreeMin) {
    finding.readiness = Readiness::kWarn;
    finding.what += ": full for NCCL and data loaders";
    finding.remedy = "remove what ended processes left: ls -l " + path;
  } else if (size < kShmGood) {
    finding.readiness = Readiness::kWarn;
    finding.what += ": small for NCCL and data loaders (Holdfast does not use it)";
    finding.remedy =
        "docker --shm-size=16g; Kubernetes: an emptyDir with medium Memory; "
        "mount -o remount,size=16g " +
        path;
  }
  return finding;
}

}  // namespace holdfast::cli
