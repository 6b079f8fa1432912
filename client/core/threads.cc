#include "client/core/threads.h"

#include <pthread.h>

#include <csignal>
#include <string>
#include <system_error>
#include <utility>

namespace holdfast::client {

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
