#pragma once

#include "coordinator/server/config.h"

namespace holdfast::coord {

/// The coordinator's process: runs until SIGTERM or SIGINT.
class Application {
 public:
  explicit Application(CoordinatorConfig config) : config_(std::move(config)) {}
  /// Runs the process and returns its exit code; prints errors to stderr.
  int Run();

 private:
  CoordinatorConfig config_;
};

}  // namespace holdfast::coord
