#pragma once

#include "base/clock.h"
#include "coordinator/server/config.h"

namespace holdfast::coord {

/// The coordinator's process: runs until SIGTERM or SIGINT.
class Application {
 public:
  Application(CoordinatorConfig config, Clock& clock) : config_(std::move(config)), clock_(clock) {}
  /// Runs the process and returns its exit code; prints errors to stderr.
  int Run();

 private:
  CoordinatorConfig config_;
  Clock& clock_;
};

}  // namespace holdfast::coord
