#include "agent/workers/manager.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>

#include "agent/api/socket.h"
#include "base/log.h"
#include "base/process.h"

namespace holdfast::agent {
namespace {
namespace fs = std::filesystem;

constexpr int kBusyMs = 20;  // poll interval while a worker starts or stops
constexpr int kIdleMs = 1000;
constexpr size_t kLaunchesLogged = 5;  // launches per job whose logs are kept
constexpr mode_t kFolderMode = 0700;
constexpr mode_t kLogsMode = 0711;  // users reach the folders that belong to them

bool IsWanted(const SetWorkers& wanted, const WorkerSpec& spec) {
  return wanted.ranks != 0 && wanted.run_id == spec.run_id && spec.rank >= wanted.first_rank &&
         spec.rank.value - wanted.first_rank.value < wanted.ranks;
}

/// Creates the missing folders of `path`, by default for this user only: environments and output of
/// workers may contain secrets.
Status MakeFolders(const std::string& path, mode_t mode = kFolderMode) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string prefix = path.substr(0, slash);
    const bool made = ::mkdir(prefix.c_str(), mode) == 0;
    if (!made && errno != EEXIST) return ErrnoStatus(errno, "create " + prefix);
    // Independent of the umask.
    if (made && ::chmod(prefix.c_str(), mode) != 0) return ErrnoStatus(errno, "chmod " + prefix);
    if (slash == std::string::npos) return Status::Ok();
  }
}

/// Sends `signal` to the worker's process group, but never to a group that reuses its ID.
void Signal(const std::optional<WorkerPids>& pids, int signal) {
  if (!pids || !IsAlive(pids->worker)) return;
  // A worker that is stopped right after its fork does not lead a group yet.
  if (::kill(-pids->worker.pid, signal) != 0 && errno == ESRCH) ::kill(pids->worker.pid, signal);
}
}  // namespace

WorkerManager::WorkerManager(WorkerManagerOptions options, std::function<void()> changed,
                             Clock& clock)
    : options_(std::move(options)), changed_(std::move(changed)), clock_(clock) {}

Result<std::unique_ptr<WorkerManager>> WorkerManager::Open(WorkerManagerOptions options,
                                                           std::function<void()> changed,
                                                           Clock& clock) {
  if (::access(options.shim.c_str(), X_OK) != 0) {
    return Fail(ErrnoStatus(errno, "start workers by " + options.shim +
                                       " (install holdfast-shim next to holdfast-agent)"));
  }
  HOLDFAST_RETURN_IF_ERROR(MakeFolders(options.folder));
  // Earlier releases made this folder accessible to all users.
  if (::chmod(options.folder.c_str(), kFolderMode) != 0) {
    return Fail(ErrnoStatus(errno, "chmod " + options.folder));
  }
  HOLDFAST_RETURN_IF_ERROR(
      MakeFolders(options.log_folder, kLogsMode).WithContext("workers.log_dir"));
  std::unique_ptr<WorkerManager> manager(
      new WorkerManager(std::move(options), std::move(changed), clock));
  manager->wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!manager->wake_.valid()) return Fail(ErrnoStatus(errno, "eventfd"));
  manager->Adopt();
  manager->thread_ = std::thread([raw = manager.get()] { raw->Run(); });
  return manager;
}

WorkerManager::~WorkerManager() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  ::eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void WorkerManager::SetWanted(SetWorkers wanted) {
  {
    MutexLock lock(mutex_);
    wanted_[wanted.job] = std::move(wanted);
  }
  ::eventfd_write(wake_.get(), 1);
}

std::vector<WorkerState> WorkerManager::Workers() {
  const int64_t now = BootNanos();
  MutexLock lock(mutex_);
  std::vector<WorkerState> list;
  for (const Worker& worker : workers_) {
    WorkerState& state = list.emplace_back();
    state.job = worker.spec.job;
    state.run_id = worker.spec.run_id;
    state.rank = worker.spec.rank;
    state.phase = worker.phase;
    if (worker.pids) state.pid = static_cast<uint32_t>(worker.pids->worker.pid);
    state.exit_code = worker.exit.exit_code;
    state.signal = worker.exit.signal;
    state.last_lines = worker.exit.last_lines;
    if (worker.phase == WorkerPhase::kEnded) {
      state.ended_ago_ms = (now - worker.exit.boot_ns) / 1'000'000;
    }
  }
  return list;
}

std::string WorkerManager::LogPath(const std::string& job, const std::string& run_id,
                                   Rank rank) const {
  return fmt::format("{}/{}/{}/rank-{}.log", options_.log_folder, job, run_id, rank.value);
}

Result<std::string> WorkerManager::ReadLog(const std::string& job, const std::string& run_id,
                                           Rank rank, uint64_t offset, size_t bytes_max) const {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", job));
  HOLDFAST_RETURN_IF_ERROR(ValidateName("run ID", run_id));
  const std::string path = LogPath(job, run_id, rank);
  // The folder may belong to the worker's user, who can put anything in place of the file.
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid()) return Fail(ErrnoStatus(errno, "open " + path));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink != 1) {
    return Fail(PermissionDeniedError(path + " is no file of the worker's user alone"));
  }
  std::string data(bytes_max, '\0');
  const ssize_t bytes = ::pread(file.get(), data.data(), data.size(), static_cast<off_t>(offset));
  if (bytes < 0) return Fail(ErrnoStatus(errno, "read " + path));
  data.resize(static_cast<size_t>(bytes));
  return data;
}

/// Adopts the workers that an earlier agent process started.
void WorkerManager::Adopt() {
  MutexLock lock(mutex_);
  std::error_code error;
  fs::recursive_directory_iterator entry(options_.folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (entry->path().filename() != "spec") continue;
    Worker worker;
    worker.folder = entry->path().parent_path().string();
    auto spec = ReadSpec(worker.folder);
    if (!spec) continue;
    worker.spec = *std::move(spec);
    worker.pids = ReadPids(worker.folder);
    if (worker.pids && IsAlive(worker.pids->shim)) {
      if (auto fd = PidFdOf(worker.pids->shim.pid)) worker.shim_fd = *std::move(fd);
    }
    Log(LogLevel::kInfo, "WorkerAdopted",
        {Kv("job", worker.spec.job), Kv("run_id", worker.spec.run_id),
         Kv("rank", worker.spec.rank.value), Kv("alive", worker.shim_fd.valid())});
    workers_.push_back(std::move(worker));
  }
}

void WorkerManager::Run() {
  for (;;) {
    std::vector<pollfd> waiting;
    int timeout_ms = 0;
    bool changed = false;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      timeout_ms = StepAll(&changed);
      waiting.push_back({wake_.get(), POLLIN, 0});
      for (const Worker& worker : workers_) {
        if (worker.phase == WorkerPhase::kEnded || !worker.shim_fd.valid()) continue;
        waiting.push_back({worker.shim_fd.get(), POLLIN, 0});
      }
    }
    if (changed) changed_();
    // Only this thread closes descriptors, so they stay valid without the lock.
    ::poll(waiting.data(), waiting.size(), timeout_ms);
    eventfd_t count = 0;
    ::eventfd_read(wake_.get(), &count);
  }
}

int WorkerManager::StepAll(bool* changed) {
  bool busy = false;
  for (Worker& worker : workers_) {
    if (worker.phase == WorkerPhase::kEnded) continue;
    *changed |= Refresh(worker);
    if (worker.phase == WorkerPhase::kEnded) continue;
    busy |= !worker.pids;
    auto wanted = wanted_.find(worker.spec.job);
    if (wanted == wanted_.end() || IsWanted(wanted->second, worker.spec)) continue;
    *changed |= Stop(worker, wanted->second.grace_ms);
    busy = true;
  }
  const auto over = [this](const Worker& worker) HOLDFAST_REQUIRES(mutex_) {
    auto wanted = wanted_.find(worker.spec.job);
    return worker.phase == WorkerPhase::kEnded && wanted != wanted_.end() &&
           !IsWanted(wanted->second, worker.spec);
  };
  for (const Worker& worker : workers_) {
    if (!over(worker)) continue;
    std::error_code ignored;
    fs::remove_all(worker.folder, ignored);
    *changed = true;
  }
  std::erase_if(workers_, over);
  for (const auto& [job, wanted] : wanted_) *changed |= StartMissing(wanted);
  std::erase_if(wanted_, [this](const auto& entry) HOLDFAST_REQUIRES(mutex_) {
    return entry.second.ranks == 0 &&
           std::none_of(workers_.begin(), workers_.end(),
                        [&](const Worker& worker) { return worker.spec.job == entry.first; });
  });
  return busy || *changed ? kBusyMs : kIdleMs;
}

/// Checks whether the worker has started and whether it has ended; returns whether that changed.
bool WorkerManager::Refresh(Worker& worker) {
  bool changed = false;
  if (!worker.pids) {
    worker.pids = ReadPids(worker.folder);
    changed = worker.pids.has_value();
  }
  bool over = !worker.shim_fd.valid();
  if (!over) {
    pollfd end{worker.shim_fd.get(), POLLIN, 0};
    over = ::poll(&end, 1, 0) > 0;
  }
  if (!over) return changed;
  if (worker.shim > 0) ::waitpid(worker.shim, nullptr, WNOHANG);
  worker.shim_fd.Reset();
  if (auto exit = ReadExit(worker.folder)) {
    worker.exit = *std::move(exit);
  } else {
    // The worker dies with its shim, but the kernel may not have delivered the signal yet.
    if (worker.pids && IsAlive(worker.pids->worker)) Signal(worker.pids, SIGKILL);
    worker.exit.signal = SIGKILL;
    worker.exit.boot_ns = BootNanos();
    worker.exit.last_lines = "(the worker's shim was killed, which also killed the worker)";
  }
  worker.phase = WorkerPhase::kEnded;
  Log(LogLevel::kInfo, "WorkerEnded",
      {Kv("job", worker.spec.job), Kv("run_id", worker.spec.run_id),
       Kv("rank", worker.spec.rank.value), Kv("exit_code", worker.exit.exit_code),
       Kv("signal", worker.exit.signal)});
  return true;
}

bool WorkerManager::Stop(Worker& worker, int64_t grace_ms) {
  const auto now = clock_.Now();
  if (!worker.pids || worker.phase == WorkerPhase::kStuck) return false;
  if (!worker.term_at) {
    worker.term_at = now;
    Signal(worker.pids, SIGTERM);
    return false;
  }
  if (!worker.kill_at) {
    if (now - *worker.term_at < std::chrono::milliseconds(grace_ms)) return false;
    worker.kill_at = now;
    Signal(worker.pids, SIGKILL);
    return false;
  }
  if (now - *worker.kill_at < std::chrono::milliseconds(options_.kill_timeout_ms)) return false;
  worker.phase = WorkerPhase::kStuck;
  Log(LogLevel::kError, "WorkerStuck",
      {Kv("job", worker.spec.job), Kv("rank", worker.spec.rank.value),
       Kv("pid", worker.pids->worker.pid)});
  return true;
}

/// Starts the missing workers, unless a worker of an older launch is left. Returns whether any was
/// started.
bool WorkerManager::StartMissing(const SetWorkers& wanted) {
  std::vector<bool> present(wanted.ranks);
  for (const Worker& worker : workers_) {
    if (worker.spec.job != wanted.job) continue;
    if (!IsWanted(wanted, worker.spec)) return false;
    present[worker.spec.rank.value - wanted.first_rank.value] = true;
  }
  bool started = false;
  for (uint32_t i = 0; i < wanted.ranks; ++i) {
    if (present[i]) continue;
    started = true;
    Status status = Start(wanted, i);
    if (status.ok()) continue;
    Log(LogLevel::kError, "WorkerNotStarted",
        {Kv("job", wanted.job), Kv("rank", wanted.first_rank.value + i),
         Kv("error", status.ToString())});
    Worker& worker = workers_.emplace_back();
    worker.spec.job = wanted.job;
    worker.spec.run_id = wanted.run_id;
    worker.spec.rank = Rank{wanted.first_rank.value + i};
    worker.phase = WorkerPhase::kEnded;
    worker.exit.exit_code = 126;
    worker.exit.boot_ns = BootNanos();
    worker.exit.last_lines = status.ToString();
  }
  return started;
}

Result<WorkerUser> WorkerManager::UserOf(const SetWorkers& wanted) const {
  if (!wanted.uid && options_.default_user.empty()) {
    return Fail(FailedPreconditionError(
        "the run names no user, since an earlier version recorded it; start the run again, or set "
        "workers.default_user of the agent"));
  }
  auto user = wanted.uid ? FindWorkerUser(*wanted.uid) : FindWorkerUser(options_.default_user);
  if (!user) return user;
  HOLDFAST_RETURN_IF_ERROR(CheckMayRunAs(*user));
  return user;
}

Status WorkerManager::MakeLogs(const std::string& job, const std::string& logs,
                               const WorkerUser& user) const {
  HOLDFAST_RETURN_IF_ERROR(MakeFolders(options_.log_folder + "/" + job, kLogsMode));
  if (::mkdir(logs.c_str(), kFolderMode) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, "create " + logs);
  }
  // Only this process's user can write in the folder above, so `logs` is no link of another user.
  const UniqueFd folder(::open(logs.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!folder.valid()) return ErrnoStatus(errno, "open " + logs);
  if (user.uid != ::geteuid() && ::fchown(folder.get(), user.uid, user.gid) != 0) {
    return ErrnoStatus(errno, "chown " + logs);
  }
  return Status::Ok();
}

Status WorkerManager::Start(const SetWorkers& wanted, uint32_t local_rank) {
  HOLDFAST_ASSIGN_OR_RETURN(const WorkerUser user, UserOf(wanted));
  Worker worker;
  WorkerSpec& spec = worker.spec;
  spec.job = wanted.job;
  spec.run_id = wanted.run_id;
  spec.rank = Rank{wanted.first_rank.value + local_rank};
  worker.folder = fmt::format("{}/{}/rank-{}", options_.folder, wanted.job, spec.rank.value);
  if (local_rank == 0) PruneLogs(wanted.job);
  const std::string logs = fmt::format("{}/{}/{}", options_.log_folder, wanted.job, wanted.run_id);
  HOLDFAST_RETURN_IF_ERROR(MakeLogs(wanted.job, logs, user));
  spec.log = LogPath(wanted.job, wanted.run_id, spec.rank);
  spec.command = wanted.command;
  spec.environment = EnvironmentOf(wanted, user, local_rank, options_.agent_socket,
                                   fmt::format("{}/rank-{}.error.json", logs, spec.rank.value));
  if (user.uid != ::geteuid()) {
    spec.uid = user.uid;
    spec.gid = user.gid;
    spec.groups.assign(user.groups.begin(), user.groups.end());
  }
  spec.directory = wanted.directory;
  spec.umask = options_.worker_umask;
  spec.cores = options_.worker_cores;
  std::error_code ignored;
  fs::remove_all(worker.folder, ignored);
  HOLDFAST_RETURN_IF_ERROR(MakeFolders(worker.folder));
  HOLDFAST_RETURN_IF_ERROR(WriteSpec(worker.folder, spec));
  HOLDFAST_RETURN_IF_ERROR(Spawn(worker));
  Log(LogLevel::kInfo, "WorkerStarted",
      {Kv("job", spec.job), Kv("run_id", spec.run_id), Kv("rank", spec.rank.value),
       Kv("user", user.name)});
  workers_.push_back(std::move(worker));
  return Status::Ok();
}

Status WorkerManager::Spawn(Worker& worker) {
  HOLDFAST_ASSIGN_OR_RETURN(const UniqueFd log, OpenLog(worker.spec.log, worker.spec.uid));
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, log.get(), 2);
  ::posix_spawn_file_actions_addclosefrom_np(&files, 3);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  // A separate session: a signal that ends the agent must not end the workers.
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
  std::string program = options_.shim;
  char* const arguments[] = {program.data(), worker.folder.data(), nullptr};
  const int error =
      ::posix_spawn(&worker.shim, program.c_str(), &files, &attributes, arguments, environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (error != 0) return ErrnoStatus(error, "start " + options_.shim);
  HOLDFAST_ASSIGN_OR_RETURN(worker.shim_fd, PidFdOf(worker.shim));
  return Status::Ok();
}

/// Removes the logs of the job's oldest launches and keeps the newest ones.
void WorkerManager::PruneLogs(const std::string& job) {
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, fs::path>> launches;
  fs::directory_iterator entry(options_.log_folder + "/" + job, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code unknown;
    if (!entry->is_directory(unknown)) continue;
    launches.emplace_back(entry->last_write_time(unknown), entry->path());
  }
  std::sort(launches.begin(), launches.end());
  for (size_t i = 0; i + kLaunchesLogged <= launches.size(); ++i) {
    fs::remove_all(launches[i].second, error);
  }
}

}  // namespace holdfast::agent
