#include "agent/pipeline/watched_ranks.h"

#include <sys/ioctl.h>
#include <sys/wait.h>

#include <csignal>

#include "base/log.h"

namespace holdfast::agent {
namespace {
/// The exit status is available once the parent has reaped the process. This is the longest wait
/// for it.
constexpr uint64_t kReapWaitNs = 1'000'000'000;

// PIDFD_GET_INFO of linux/pidfd.h, which is newer than many C libraries (exit: Linux 6.15).
struct PidFdInfo {
  uint64_t mask = 0;
  uint64_t cgroup_id = 0;
  uint32_t ids[11] = {};
  int32_t exit_code = 0;
};
static_assert(sizeof(PidFdInfo) == 64);
constexpr uint64_t kPidFdInfoExit = 1U << 3;
constexpr unsigned long kPidFdGetInfo = _IOWR(0xFF, 11, PidFdInfo);

/// Returns the wait status as waitpid(2) does; nothing when the kernel does not provide it.
std::optional<int> WaitStatusOf(int pid_fd) {
  PidFdInfo info;
  info.mask = kPidFdInfoExit;
  if (pid_fd < 0 || ::ioctl(pid_fd, kPidFdGetInfo, &info) != 0) return std::nullopt;
  if ((info.mask & kPidFdInfoExit) == 0) return std::nullopt;
  return info.exit_code;
}
}  // namespace

void WatchedRanks::Join(const WatchedRank& who, UniqueFd pid_fd, SegmentControl& control) {
  MutexLock lock(mutex_);
  std::erase_if(entries_, [&who](const auto& entry) {
    const WatchedRank& other = entry.second.who;
    return other.job == who.job && other.incarnation < who.incarnation;
  });
  Entry& entry = entries_[{who.job, who.rank}];
  entry.who = who;
  entry.pid_fd = std::move(pid_fd);
  entry.ended_ns.reset();
  entry.control = &control;
  entry.reader.emplace(control);
  entry.read_error_logged = false;
}

void WatchedRanks::Leave(const std::string& job, Rank rank, bool orderly) {
  MutexLock lock(mutex_);
  auto found = entries_.find({job, rank});
  if (found == entries_.end()) return;
  found->second.reader.reset();
  found->second.control = nullptr;
  if (orderly) entries_.erase(found);
}

std::vector<ObservedRank> WatchedRanks::Observe(uint64_t now_ns) {
  MutexLock lock(mutex_);
  std::vector<ObservedRank> observations;
  for (auto& [key, entry] : entries_) {
    ObservedRank& observed = observations.emplace_back();
    observed.who = entry.who;
    const std::optional<ProcessStat> stat = StatOf(entry.who.process.pid);
    const bool exists = stat && stat->start_ticks == entry.who.process.start_ticks;
    observed.alive = exists && stat->state != 'Z' && stat->state != 'X';
    if (!observed.alive) ObserveEnd(entry, !exists, now_ns, &observed);
    if (observed.alive && stat) observed.process_state = stat->state;
    if (!entry.reader) continue;
    auto telemetry = entry.reader->Read(now_ns);
    if (telemetry) {
      observed.telemetry = *std::move(telemetry);
    } else if (!std::exchange(entry.read_error_logged, true)) {
      Log(LogLevel::kWarn, "TelemetryRefused",
          {Kv("job", key.first), Kv("rank", key.second.value),
           Kv("error", telemetry.error().ToString())});
    }
  }
  return observations;
}

/// An intended end (exit code 0, SIGTERM, SIGINT) is not a failure. While the exit status is
/// unknown, the process counts as alive, for kReapWaitNs at most.
void WatchedRanks::ObserveEnd(Entry& entry, bool reaped, uint64_t now_ns, ObservedRank* observed) {
  if (!entry.ended_ns) entry.ended_ns = now_ns;
  const std::optional<int> status = WaitStatusOf(entry.pid_fd.get());
  if (status) {
    const int signal = WIFSIGNALED(*status) ? WTERMSIG(*status) : 0;
    observed->ended_orderly =
        (WIFEXITED(*status) && WEXITSTATUS(*status) == 0) || signal == SIGTERM || signal == SIGINT;
  }
  observed->alive = !status && !reaped && now_ns - *entry.ended_ns < kReapWaitNs;
}

std::optional<ProcessName> WatchedRanks::ProcessOf(const std::string& job, Rank rank) {
  MutexLock lock(mutex_);
  auto found = entries_.find({job, rank});
  if (found == entries_.end()) return std::nullopt;
  return found->second.who.process;
}

void WatchedRanks::Sample(const std::string& job, uint32_t operations) {
  MutexLock lock(mutex_);
  for (auto& [key, entry] : entries_) {
    if (key.first == job && entry.control != nullptr) {
      RequestSampling(entry.control->collectives, operations);
    }
  }
}

}  // namespace holdfast::agent
