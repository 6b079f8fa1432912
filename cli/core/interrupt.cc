#include "cli/core/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "cli/core/exit_code.h"

namespace holdfast::cli {

namespace {

/// Shared by the signal thread and the command. Never destroyed: the thread may outlive main.
struct Registry {
  Mutex mutex;
  CondVar changed;
  size_t next_id HOLDFAST_GUARDED_BY(mutex) = 1;
  std::map<size_t, std::function<void()>> cancels HOLDFAST_GUARDED_BY(mutex);
  std::map<size_t, std::string> files HOLDFAST_GUARDED_BY(mutex);
  std::atomic<bool> requested{false};
  std::atomic<bool> defer{false};  // the first signal
  std::atomic<bool> deferred{false};
};

Registry& TheRegistry() {
  static auto& registry = *std::make_unique<Registry>().release();
  return registry;
}

constexpr timespec kGrace = {1, 0};

/// Ends the process when the command does not end in time. Leaves no partially written file.
[[noreturn]] void RemoveFilesAndExit() {
  Registry& registry = TheRegistry();
  MutexLock lock(registry.mutex);
  for (const auto& [id, path] : registry.files) ::unlink(path.c_str());
  // Ends the line of a progress bar.
  if (::isatty(STDERR_FILENO) == 1) static_cast<void>(!::write(STDERR_FILENO, "\n", 1));
  ::_exit(static_cast<int>(ExitCode::kInterrupted));
}

/// The signal thread: waits for one signal, then makes the process end.
void AwaitSignals(sigset_t signals) {
  int signal = 0;
  while (::sigwait(&signals, &signal) != 0) {
  }
  Registry& registry = TheRegistry();
  if (registry.defer) {
    registry.deferred = true;
    while (::sigwait(&signals, &signal) != 0) {
    }
  }
  {
    MutexLock lock(registry.mutex);
    registry.requested = true;
    for (auto& [id, cancel] : registry.cancels) cancel();
    registry.changed.NotifyAll();
  }
  // A second signal ends the wait early.
  ::sigtimedwait(&signals, nullptr, &kGrace);
  RemoveFilesAndExit();
}

}  // namespace

void Interrupt::Install() {
  TheRegistry();
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGINT);
  ::sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  std::thread(AwaitSignals, signals).detach();
}

bool Interrupt::requested() { return TheRegistry().requested; }

Status Interrupt::Check() {
  if (requested()) return CancelledError("interrupted");
  return Status::Ok();
}

Status Interrupt::SleepFor(int64_t timeout_ms) {
  Registry& registry = TheRegistry();
  MutexLock lock(registry.mutex);
  while (!registry.requested) {
    // A spurious wake-up only makes the pause longer.
    if (!registry.changed.WaitFor(registry.mutex, std::chrono::milliseconds(timeout_ms))) break;
  }
  return Interrupt::Check();
}

OnInterrupt::OnInterrupt(std::function<void()> cancel) {
  Registry& registry = TheRegistry();
  MutexLock lock(registry.mutex);
  id_ = registry.next_id++;
  if (registry.requested) cancel();
  registry.cancels[id_] = std::move(cancel);
}

OnInterrupt::~OnInterrupt() {
  Registry& registry = TheRegistry();
  MutexLock lock(registry.mutex);
  registry.cancels.erase(id_);
}

DeferInterrupt::DeferInterrupt() { TheRegistry().defer = true; }
DeferInterrupt::~DeferInterrupt() { TheRegistry().defer = false; }
bool DeferInterrupt::seen() { return TheRegistry().deferred; }

TemporaryFile::TemporaryFile(std::string path) : path_(std::move(path)) {
  Registry& registry = TheRegistry();
  MutexLock lock(registry.mutex);
  id_ = registry.next_id++;
  registry.files[id_] = path_;
}

TemporaryFile::~TemporaryFile() {
  if (kept_) return;
  ::unlink(path_.c_str());
  Registry& registry = TheRegistry();
  MutexLock lock(registry.mutex);
  registry.files.erase(id_);
}

void TemporaryFile::Keep() {
  Registry& registry = TheRegistry();
  MutexLock lock(registry.mutex);
  registry.files.erase(id_);
  kept_ = true;
}

}  // namespace holdfast::cli
