#include "cli/core/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/config.h"
#include "cli/core/text.h"

namespace holdfast::cli {

namespace {
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
constexpr nanoseconds kRedraw = milliseconds(100);
constexpr nanoseconds kLineEvery = milliseconds(3000);
constexpr nanoseconds kFirstBar = milliseconds(300);
constexpr size_t kBarWidth = 24;
}  // namespace

Progress::Progress(std::string what, uint64_t total_bytes, bool enabled, Clock& clock)
    : what_(std::move(what)),
      total_bytes_(total_bytes),
      enabled_(enabled),
      terminal_(::isatty(STDERR_FILENO) == 1),
      clock_(clock),
      start_(clock.Now()),
      next_draw_nanos_((terminal_ ? kFirstBar : kLineEvery).count()) {}

Progress::~Progress() { Clear(); }

std::string Progress::Line(uint64_t done, double elapsed_seconds) const {
  double rate = elapsed_seconds > 0 ? static_cast<double>(done) / elapsed_seconds : 0;
  std::string line = what_;
  if (total_bytes_ > 0) {
    double part = std::min(1.0, static_cast<double>(done) / static_cast<double>(total_bytes_));
    if (terminal_) {
      auto full = static_cast<size_t>(part * kBarWidth);
      line += " [" + std::string(full, '#') + std::string(kBarWidth - full, '.') + "]";
    }
    line +=
        fmt::format(" {:.0f}% {} of {}", part * 100, FormatBytes(done), FormatBytes(total_bytes_));
  } else {
    line += " " + FormatBytes(done);
  }
  line += fmt::format(", {}/s", FormatBytes(static_cast<uint64_t>(rate)));
  if (rate > 0 && total_bytes_ > done) {
    double left = static_cast<double>(total_bytes_ - done) / rate;
    line += fmt::format(", {} left", left < 1 ? "1s" : FormatAge(static_cast<int64_t>(left * 1e9)));
  }
  return line;
}

void Progress::Add(uint64_t bytes) {
  uint64_t done = done_.fetch_add(bytes) + bytes;
  if (!enabled_) return;
  int64_t elapsed = nanoseconds(clock_.Now() - start_).count();
  int64_t due = next_draw_nanos_.load();
  int64_t next = elapsed + (terminal_ ? kRedraw : kLineEvery).count();
  // Only one of several threads draws.
  if (elapsed < due || !next_draw_nanos_.compare_exchange_strong(due, next)) return;
  std::string line = Line(done, static_cast<double>(elapsed) / 1e9);
  MutexLock lock(mutex_);
  if (terminal_) {
    winsize size{};
    bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    std::fprintf(stderr, "\r\x1b[K%s", FitWidth(line, known ? size.ws_col - 1U : 79).c_str());
    drawn_ = true;
  } else {
    std::fprintf(stderr, "holdfast: %s\n", line.c_str());
  }
  std::fflush(stderr);
}

void Progress::Clear() {
  MutexLock lock(mutex_);
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace holdfast::cli
