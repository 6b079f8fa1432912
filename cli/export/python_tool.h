#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/status.h"

namespace holdfast::cli {

/// Reads and writes formats that need torch: runs `holdfast.torch.convert` in a Python interpreter
/// that has torch and the package holdfast.
class PythonTool {
 public:
  /// Adds --python.
  void AddTo(CLI::App& command);

  /// Returns FailedPrecondition, with what to install, when the interpreter or a package is
  /// missing.
  Status Check() const;
  /// Runs the conversion and returns its stdout. Its messages go to stderr; the last one is its
  /// error. Ends the program when the command is interrupted.
  Result<std::string> Convert(const std::vector<std::string>& arguments) const;

 private:
  std::string python_ = "python3";
};

}  // namespace holdfast::cli
