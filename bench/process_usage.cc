#include "bench/process_usage.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace holdfast::bench {
namespace {
// Fields of /proc/PID/stat after the name in parentheses, from 0: see proc(5).
constexpr int kUserTicks = 11;
constexpr int kSystemTicks = 12;
constexpr int kThreads = 17;
constexpr int kResidentPages = 21;
}  // namespace

Result<ProcessUsage> UsageOf(pid_t pid) {
  const std::string folder = fmt::format("/proc/{}", pid);
  std::ifstream file(folder + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) {
    return Fail(NotFoundError(fmt::format("{}/stat cannot be read", folder)));
  }
  std::istringstream fields(text.substr(name_end + 1));
  ProcessUsage usage;
  const double tick = static_cast<double>(::sysconf(_SC_CLK_TCK));
  std::string field;
  for (int i = 0; fields >> field; ++i) {
    if (i == kUserTicks || i == kSystemTicks) usage.cpu_seconds += std::stod(field) / tick;
    if (i == kThreads) usage.threads = std::stoull(field);
    if (i == kResidentPages) {
      usage.resident_bytes = std::stoull(field) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    }
  }
  std::error_code error;
  const std::filesystem::directory_iterator descriptors(folder + "/fd", error);
  if (!error) {
    usage.descriptors = static_cast<uint64_t>(std::distance(begin(descriptors), end(descriptors)));
  }
  return usage;
}

}  // namespace holdfast::bench
