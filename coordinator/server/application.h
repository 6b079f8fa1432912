#pragma once

#include "coordinator/server/config.h"

namespace holdfast::coord {

/// The coordinator as a process: runs until SIGTERM or SIGINT.
class Application {
 public:
  explicit Application(CoordinatorConfig config) : config_(std::move(config)) {}
  /// The process's exit code; errors are on stderr.
  int Run();

 private:
  CoordinatorConfig config_;
};

}  // namespace holdfast::coord
