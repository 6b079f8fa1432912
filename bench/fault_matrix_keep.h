#pragma once

#include <fstream>
#include <string>

#include "bench/fault_matrix.h"
#include "storage/base/mutex.h"

// Outcomes of runs in a file, so that a matrix that takes hours can be continued, or be given more
// seeds. It is text: the program's checksum in the first line, then a line a run.

namespace holdfast::bench {

class KeptOutcomes {
 public:
  /// Reads the runs of the same program that are there; makes the file when it is not.
  /// FailedPrecondition: another program made it.
  static Result<KeptOutcomes> Open(const std::string& path);
  KeptOutcomes(KeptOutcomes&& other) noexcept;

  /// The outcome, without what was said; false when the run has not been made.
  bool Find(const MatrixCell& cell, uint64_t seed, sim::Outcome* outcome) const;
  /// Any thread.
  void Add(const MatrixCell& cell, uint64_t seed, const sim::Outcome& outcome);

 private:
  KeptOutcomes() = default;

  std::map<std::string, sim::Outcome> outcomes_;  // by run; not changed after Open()
  Mutex mutex_;
  std::ofstream file_;
};

}  // namespace holdfast::bench
