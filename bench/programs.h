#pragma once

#include "bench/bench.h"

// Benchmarks that are separate programs. They do their own repetitions and write their results in
// the common form.

namespace holdfast::bench {

/// Runs bench/torch.sh, which measures PyTorch's ways of saving. Writes its table and plot into
/// `options.into`.
Result<std::vector<BenchResult>> RunTorch(const BenchOptions& options);
/// Runs holdfast-fault-matrix, which simulates faults. Writes its tables into `options.into`.
Result<std::vector<BenchResult>> RunFaultMatrix(const BenchOptions& options);

}  // namespace holdfast::bench
