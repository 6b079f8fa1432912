#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/status.h"

namespace holdfast::coord {

/// Replaces a file by a new text at an interval. Each time a complete file is renamed, so readers
/// never see a partial one. The destructor removes the file. A thread of the object writes.
/// Threads: any.
class MetricsTextfile {
 public:
  /// Starts at once. The thread calls `render` for each text.
  MetricsTextfile(std::string path, std::chrono::seconds period,
                  std::function<std::string()> render);
  ~MetricsTextfile();
  MetricsTextfile(const MetricsTextfile&) = delete;
  MetricsTextfile& operator=(const MetricsTextfile&) = delete;

 private:
  void Run();
  Status Write(const std::string& text);

  const std::string path_;
  const std::chrono::seconds period_;
  const std::function<std::string()> render_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace holdfast::coord
