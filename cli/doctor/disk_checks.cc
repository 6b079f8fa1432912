#include "cli/doctor/disk_checks.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "agent/selftest/disk_check.h"
#include "base/config.h"

namespace holdfast::cli {
namespace {

constexpr double kWriteSeconds = 2;
// Slower disks are wrong for checkpoints, or share their bandwidth.
constexpr double kDiskRateGood = 100e6;
constexpr uint64_t kFreeMin = 64ULL << 20;

}  // namespace

uint64_t FreeBytes(const std::string& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0) return 0;
  return uint64_t{info.f_bavail} * info.f_frsize;
}

Finding CheckDataDir(const std::string& path, const agent::AgentConfig& config,
                     uint64_t bytes_max) {
  Finding finding{"disk " + path, Readiness::kFail, "", ""};
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) {
    finding.what = "there is no such directory";
    finding.remedy =
        "mount the disk and create it: install -d -m 0700 -o holdfast -g holdfast " + path;
    return finding;
  }
  const uint64_t free = FreeBytes(path);
  if (free < kFreeMin) {
    finding.what = fmt::format("only {} are free", FormatBytes(free));
    finding.remedy = "free some space, or lower retention.keep_last of the coordinator";
    return finding;
  }
  IoOptions io;
  io.io_uring = config.io_uring;
  io.direct = config.direct;
  io.queue_depth = static_cast<uint32_t>(config.queue_depth);
  auto directory = OpenDirectory(path, io);
  if (!directory) {
    const bool denied = directory.error().code() == ErrorCode::kPermissionDenied;
    finding.readiness = denied ? Readiness::kUnknown : Readiness::kFail;
    finding.what = directory.error().message();
    finding.remedy = denied ? "run this command as root or as the agent's user"
                            : "check the mount and the kernel's log (dmesg)";
    return finding;
  }
  selftest::DiskCheckOptions options;
  options.bytes = bytes_max;
  options.seconds = kWriteSeconds;
  const selftest::CheckResult result = selftest::CheckDisk(**directory, options);
  if (result.outcome != selftest::Outcome::kPassed) {
    const bool failed = result.outcome == selftest::Outcome::kFailed;
    finding.readiness = failed ? Readiness::kFail : Readiness::kUnknown;
    finding.what = result.what;
    finding.remedy = failed ? "take this disk out of data_dirs and replace it"
                            : "run this command as root or as the agent's user";
    return finding;
  }
  finding.readiness = Readiness::kOk;
  finding.what =
      fmt::format("{} free, writes {:.2f} GB/s, reads {:.2f} GB/s ({})", FormatBytes(free),
                  result.write_rate / 1e9, result.read_rate / 1e9, (*directory)->Describe());
  if (result.write_rate < kDiskRateGood) {
    finding.readiness = Readiness::kWarn;
    finding.what += ": slow";
    finding.remedy =
        "use a local NVMe disk, and check for other writers (iostat -x 1) and a disk that fails "
        "(smartctl -a)";
  }
  return finding;
}

}  // namespace holdfast::cli
