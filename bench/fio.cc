#include "bench/fio.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

namespace holdfast::bench {
namespace {
Result<std::string> Output(const std::string& command) {
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  if (!pipe) return Fail(InternalError("popen failed"));
  std::string out;
  std::array<char, 4096> block{};
  for (size_t n; (n = fread(block.data(), 1, block.size(), pipe.get())) > 0;) {
    out.append(block.data(), n);
  }
  return out;
}
}  // namespace

Result<double> RunFio(const FioJob& job) {
  // Reads use the files of an earlier write job of the same shape. Writes create new files each
  // time, as a checkpoint does.
  std::string clean = job.write ? fmt::format("rm -f {}/fio.*; ", job.dir) : "";
  HOLDFAST_ASSIGN_OR_RETURN(
      std::string out,
      Output(fmt::format(
          "{}fio --name=fio --directory={} --filename_format='fio.$jobnum' --ioengine=io_uring "
          "--direct=1 --rw={} --bs={} --iodepth={} --size={} --numjobs={} {} "
          "--output-format=json 2>/dev/null",
          clean, job.dir, job.write ? "write" : "read", job.block_bytes, job.depth, job.bytes,
          job.files, job.write ? "--end_fsync=1 --fallocate=native" : "--invalidate=1")));
  auto document =
      nlohmann::json::parse(out.substr(std::min(out.find('{'), out.size())), nullptr, false);
  if (document.is_discarded() || document["jobs"].empty()) {
    return Fail(NotFoundError("fio did not run: deploy/install-deps.sh --bench installs it"));
  }
  // job_runtime includes the final fsync. The jobs start together, so the longest is the total.
  double ms = 0;
  for (const auto& one : document["jobs"]) ms = std::max(ms, one["job_runtime"].get<double>());
  return ms / 1000;
}

Result<FioJob> BestFio(FioJob job, bool quick) {
  FioJob best = job;
  double best_seconds = 1e9;
  for (uint64_t block : {1ULL << 20, 4ULL << 20}) {
    for (int depth : {4, 16, 32}) {
      if (quick && depth != 16) continue;
      job.block_bytes = block;
      job.depth = depth;
      for (int round = 0; round < (quick ? 1 : 2); ++round) {
        HOLDFAST_ASSIGN_OR_RETURN(double seconds, RunFio(job));
        if (seconds < best_seconds) {
          best_seconds = seconds;
          best = job;
        }
      }
    }
  }
  return best;
}

}  // namespace holdfast::bench
