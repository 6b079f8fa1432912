#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace holdfast {

/// Reports to the service manager (systemd, Type=notify) that started this process, by datagrams to
/// $NOTIFY_SOCKET: see sd_notify(3). Without a service manager the reports do nothing. Thread-safe.
class ServiceManager {
 public:
  ServiceManager() = default;  // none
  /// Reads the environment, and removes what it reads: child processes must not report for this
  /// one. Call it in main before any thread exists.
  static ServiceManager FromEnvironment();

  /// The process serves its clients now.
  void Ready() const { Send("READY=1"); }
  /// The process ends now.
  void Stopping() const { Send("STOPPING=1"); }
  /// The process makes progress. Without this report for the unit's WatchdogSec the service manager
  /// kills the process. Call it at least once per watch_interval(). Never blocks.
  void Alive() const;
  /// Returns the longest time allowed between two calls of Alive(): a third of WatchdogSec, at most
  /// 1 s.
  std::chrono::milliseconds watch_interval() const { return watch_interval_; }
  /// Returns whether a service manager started exactly this process, so that stopping its unit ends
  /// every process in this one's cgroup.
  bool owns_process() const { return owns_process_; }

 private:
  void Send(std::string_view message, int flags = 0) const;

  std::string socket_;  // a path, or '@' and an abstract name; empty: none
  bool watched_ = false;
  bool owns_process_ = false;
  std::chrono::milliseconds watch_interval_{1000};
};

}  // namespace holdfast
