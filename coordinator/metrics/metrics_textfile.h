#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "storage/base/mutex.h"
#include "storage/base/status.h"

namespace holdfast::coord {

/// Writes a text to a file again and again, each time by renaming a complete file, so that readers
/// never see a part. The destructor removes the file. A thread writes; Threads: any.
class MetricsTextfile {
 public:
  /// `render` is called by the thread. Starts at once.
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
