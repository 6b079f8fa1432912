#pragma once

#include "bench/bench.h"

// Benchmarks that are programs of their own: they repeat themselves, and write their results in the
// common form.

namespace holdfast::bench {

/// bench/torch.sh: PyTorch's ways of saving. `options.into` gets its table and plot.
Result<std::vector<BenchResult>> RunTorch(const BenchOptions& options);
/// holdfast-fault-matrix: simulated faults. `options.into` gets its tables.
Result<std::vector<BenchResult>> RunFaultMatrix(const BenchOptions& options);

}  // namespace holdfast::bench
