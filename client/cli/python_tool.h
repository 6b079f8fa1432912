#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "storage/base/status.h"

namespace holdfast::cli {

/// What only torch can read or write is done by the Python package: an interpreter that has it and
/// torch runs `holdfast.torch.convert`.
class PythonTool {
 public:
  /// --python
  void AddTo(CLI::App& command);

  /// FailedPrecondition, saying what to install, when the interpreter or the packages are not
  /// there.
  Status Check() const;
  /// What it wrote on its stdout. Its messages go to stderr; its error is the last of them. Ended
  /// when the command is interrupted.
  Result<std::string> Convert(const std::vector<std::string>& arguments) const;

 private:
  std::string python_ = "python3";
};

}  // namespace holdfast::cli
