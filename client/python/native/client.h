#pragma once

#include <holdfast/holdfast.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace holdfast::python {

using Extras = std::vector<std::pair<std::string, nanobind::bytes>>;

/// Wraps a holdfast_client for Python: raises exceptions for errors, and releases the GIL while the
/// library works. Keeps a reference to `tensors`, since the library reads their memory until Close.
class Client {
 public:
  struct Settings {
    std::string job;
    uint32_t rank = 0;
    uint32_t world = 1;
    std::optional<std::string> run_id, socket_path, device_backend;
    uint32_t slots = 0, when_full = 0, wait_ms = 0;
    uint32_t connect_timeout_ms = 0, agent_timeout_ms = 0, start_offline = 0;
    uint64_t extra_bytes_max = 0;
    uint32_t extra_count_max = 0, copy_threads = 0, image_format = 0;
  };
  Client(const Settings& settings, nanobind::sequence tensors);
  /// Closes the client. Waits at most five seconds.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void Save(uint64_t step, const Extras& extras, uintptr_t stream, uint32_t wait_ms);
  void Guard(uintptr_t stream);
  /// Blocks until the step is committed at `tier`. Ctrl-C ends the wait.
  void Wait(uint64_t step, uint32_t tier, uint64_t timeout_ms);
  std::optional<std::pair<uint64_t, uint64_t>> Latest(uint32_t tier);
  void Connection();
  nanobind::dict Restore(std::optional<std::pair<uint64_t, uint64_t>> wanted, uint64_t timeout_ms);
  std::vector<std::string> Differences();
  void BeginPhase(uint32_t phase);
  void EndPhase(uint32_t phase);
  nanobind::dict Stats();
  void Close(uint64_t timeout_ms);
  bool closed() const { return client_ == nullptr; }
  /// Returns the log messages since the last call: (level, message).
  std::vector<std::pair<int, std::string>> TakeLog();

  /// Raises FailedPreconditionError if the client is closed.
  holdfast_client* get() const;
  /// nullptr if the client is closed.
  holdfast_client* get_or_null() const { return client_; }

 private:
  /// Called from the library's threads, without the GIL. Must not call Python.
  static void Log(void* context, int level, const char* message);

  holdfast_client* client_ = nullptr;
  nanobind::object tensors_;
  std::mutex log_mutex_;
  std::deque<std::pair<int, std::string>> log_;
};

void BindClient(nanobind::module_& module);
/// Binds collectives and steps, which need no client.
void BindRecords(nanobind::module_& module);
void BindReader(nanobind::module_& module);

}  // namespace holdfast::python
