#include "base/cores.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/fd.h"

namespace holdfast {
namespace {
constexpr const char* kFilterFile = "/proc/self/coredump_filter";

void WriteFilter(const std::string& filter) {
  const UniqueFd file(::open(kFilterFile, O_WRONLY | O_CLOEXEC));
  // The limit alone suffices for most programs that collect core dumps.
  [[maybe_unused]] const ssize_t written = ::write(file.get(), filter.data(), filter.size());
}
}  // namespace

CoreSettings KeepMemoryOutOfCores() {
  CoreSettings before;
  rlimit limit{};
  if (::getrlimit(RLIMIT_CORE, &limit) == 0) before.limit = limit.rlim_cur;
  limit.rlim_cur = 0;
  ::setrlimit(RLIMIT_CORE, &limit);
  const UniqueFd file(::open(kFilterFile, O_RDONLY | O_CLOEXEC));
  std::array<char, 32> text{};
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got > 0) before.filter = "0x" + std::string(text.data(), static_cast<size_t>(got));
  // The limit does not apply to a program to which the kernel passes core dumps.
  WriteFilter("0x0");
  return before;
}

void RestoreCores(const CoreSettings& settings) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_CORE, &limit) == 0) {
    limit.rlim_cur = std::min<rlim_t>(settings.limit, limit.rlim_max);
    ::setrlimit(RLIMIT_CORE, &limit);
  }
  if (!settings.filter.empty()) WriteFilter(settings.filter);
}

}  // namespace holdfast
