#include "base/metrics/metrics_textfile.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/fd.h"
#include "base/log.h"

namespace holdfast::coord {
namespace {
// The collector that reads the file runs as another user.
constexpr mode_t kTextfileMode = 0644;
}  // namespace

MetricsTextfile::MetricsTextfile(std::string path, std::chrono::seconds period,
                                 std::function<std::string()> render)
    : path_(std::move(path)), period_(period), render_(std::move(render)) {
  thread_ = std::thread([this] { Run(); });
}

MetricsTextfile::~MetricsTextfile() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  ::unlink(path_.c_str());
}

void MetricsTextfile::Run() {
  bool failed = false;
  for (;;) {
    const Status status = Write(render_());
    if (!status.ok() && !failed) {
      Log(LogLevel::kWarn, "MetricsTextfileFailed", {Kv("error", status.ToString())});
    }
    failed = !status.ok();
    MutexLock lock(mutex_);
    // A spurious wake-up only makes the pause longer.
    while (!stopping_ && changed_.WaitFor(mutex_, period_)) {
    }
    if (stopping_) return;
  }
}

Status MetricsTextfile::Write(const std::string& text) {
  // Collectors ignore files that do not end in .prom.
  const std::string part = path_ + ".part";
  // Another user may have put a file or a link here. A new file replaces it.
  ::unlink(part.c_str());
  const UniqueFd file(
      ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kTextfileMode));
  if (!file.valid()) return ErrnoStatus(errno, "open " + part);
  for (size_t written = 0; written < text.size();) {
    const ssize_t more = ::write(file.get(), text.data() + written, text.size() - written);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) return ErrnoStatus(errno, "write " + part);
    written += static_cast<size_t>(more);
  }
  if (::fchmod(file.get(), kTextfileMode) != 0) return ErrnoStatus(errno, "chmod " + part);
  if (std::rename(part.c_str(), path_.c_str()) != 0) return ErrnoStatus(errno, "rename " + part);
  return Status::Ok();
}

}  // namespace holdfast::coord
