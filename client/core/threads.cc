#include "client/core/threads.h"

#include <pthread.h>

#include <csignal>
#include <string>
#include <system_error>
#include <utility>

namespace holdfast::client {
namespace {
constexpr std::chrono::milliseconds kStopCheckPeriod(100);

struct ThreadStopCheck {
  int (*check)(void*) = nullptr;
  void* context = nullptr;
  MonotonicTime next;
};
thread_local ThreadStopCheck stop_check;
}  // namespace

void SetStopCheck(int (*check)(void* context), void* context) {
  stop_check = {check, context, MonotonicNow()};
}

bool StopRequested() {
  if (stop_check.check == nullptr || MonotonicNow() < stop_check.next) return false;
  stop_check.next = MonotonicNow() + kStopCheckPeriod;
  return stop_check.check(stop_check.context) != 0;
}

MonotonicTime NextStopCheck() {
  return stop_check.check == nullptr ? MonotonicTime::max() : stop_check.next;
}

Result<std::thread> StartThread(const char* name, std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  // A new thread inherits the mask, so there is no instant at which it could run a handler.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  std::string failure;
  try {
    thread = std::thread(std::move(body));
  } catch (const std::system_error& error) {
    failure = error.what();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!thread.joinable()) {
    return Fail(ResourceExhaustedError("cannot start a thread: " + failure +
                                       "; raise the limit on processes (ulimit -u)"));
  }
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace holdfast::client
