#include "agent/pipeline/parallel.h"

#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

#include "base/thread.h"
#include "storage/format/checksum.h"

namespace holdfast::agent {
namespace {
constexpr size_t kThreadsMax = 8;
}  // namespace

Status InParallel(size_t count, size_t first, const std::function<Status(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::vector<Status> outcomes(std::min(kThreadsMax, count));
  const auto run = [&](Status* outcome) {
    for (size_t i = next++; i < count; i = next++) {
      *outcome = work((first + i) % count);
      if (!outcome->ok()) next = count;
    }
  };
  std::vector<Thread> threads;
  for (size_t i = 1; i < outcomes.size(); ++i) threads.emplace_back(run, &outcomes[i]);
  if (!outcomes.empty()) run(&outcomes[0]);
  for (Thread& thread : threads) thread.join();
  for (const Status& outcome : outcomes) HOLDFAST_RETURN_IF_ERROR(outcome);
  return Status::Ok();
}

size_t FirstOf(const std::string& node, size_t count) {
  return count == 0 ? 0 : Crc32c(std::as_bytes(std::span(node))) % count;
}

}  // namespace holdfast::agent
