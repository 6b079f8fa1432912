#include "base/invariant.h"

#include <fmt/format.h>

namespace holdfast {
namespace {
// A violation in a loop must not fill the log.
constexpr uint32_t kLoggedMax = 16;
/// The violations of the process, for its metrics.
struct Violations {
  std::atomic<uint64_t> count{0};
  Mutex mutex;
  std::string first HOLDFAST_GUARDED_BY(mutex);
};

Violations& All() {
  static Violations all;
  return all;
}

/// Returns the path of a file in the source tree. The beginning of __FILE__ depends on the build.
std::string_view InTree(std::string_view file) {
  constexpr std::string_view kTree = HOLDFAST_SOURCE_DIR "/";
  constexpr std::string_view kUp = "../";
  if (file.starts_with(kTree)) file.remove_prefix(kTree.size());
  while (file.starts_with(kUp)) file.remove_prefix(kUp.size());
  return file;
}
}  // namespace

std::string InvariantMonitor::what() const {
  MutexLock lock(mutex_);
  return what_;
}

Status InvariantMonitor::error() const {
  if (!violated()) return Status::Ok();
  return {ErrorCode::kInternal,
          fmt::format("{} has stopped, because an invariant is violated: {}", component_, what())};
}

bool InvariantMonitor::Report(const InvariantSite& site,
                              std::initializer_list<LogField> values) noexcept {
  std::string text;
  for (const LogField& field : values) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", field.key, field.value);
  }
  const std::string at = fmt::format("{}:{}", InTree(site.file), site.line);
  std::string what = fmt::format("{} does not hold at {}", site.expression, at);
  if (!text.empty()) what += " (" + text + ")";
  All().count.fetch_add(1, std::memory_order_relaxed);
  {
    MutexLock lock(All().mutex);
    if (All().first.empty()) All().first = component_ + ": " + what;
  }
  bool log = false;
  {
    MutexLock lock(mutex_);
    if (what_.empty()) what_ = std::move(what);
    log = ++logged_ <= kLoggedMax;
  }
  violated_.store(true, std::memory_order_release);
  if (log) {
    Log(LogLevel::kError, "InvariantViolated",
        {Kv("component", component_), Kv("at", at), Kv("invariant", site.expression),
         Kv("values", text)});
  }
  return false;
}

InvariantMonitor& InvariantMonitor::Process() {
  static InvariantMonitor monitor("process");
  return monitor;
}

uint64_t InvariantViolations() { return All().count.load(std::memory_order_relaxed); }

std::string FirstInvariantViolation() {
  MutexLock lock(All().mutex);
  return All().first;
}

}  // namespace holdfast
