#pragma once

#include <fstream>
#include <string>

#include "base/mutex.h"
#include "bench/fault_matrix.h"

// Outcomes of runs in a text file, so that a matrix that takes hours can be continued, or extended
// with more seeds. The first line holds the program's checksum, each further line holds one run.

namespace holdfast::bench {

class KeptOutcomes {
 public:
  /// Reads the runs in the file, or creates the file. FailedPrecondition: a different program wrote
  /// it.
  static Result<KeptOutcomes> Open(const std::string& path);
  KeptOutcomes(KeptOutcomes&& other) noexcept;

  /// Sets `outcome`, without its verdicts. Returns false if the file does not contain the run.
  bool Find(const MatrixCell& cell, uint64_t seed, sim::Outcome* outcome) const;
  /// Appends a run to the file. Any thread.
  void Add(const MatrixCell& cell, uint64_t seed, const sim::Outcome& outcome);

 private:
  KeptOutcomes() = default;

  std::map<std::string, sim::Outcome> outcomes_;  // by run; not changed after Open()
  Mutex mutex_;
  std::ofstream file_;
};

}  // namespace holdfast::bench
