#include "coordinator/api/node_warning.h"

#include <cctype>

namespace holdfast::coord {
namespace {
/// Returns whether a warning reports a full disk. Agents' own warnings begin with "disk full".
bool ReportsDiskFull(const std::string& warning) {
  std::string lower;
  for (char c : warning) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower.find("disk full") != std::string::npos ||
         lower.find("outofspace") != std::string::npos ||
         lower.find("no space left") != std::string::npos;
}
}  // namespace

std::string_view NodeWarningCode(const std::string& warning) {
  if (ReportsDiskFull(warning)) return "DISK_FULL";
  if (warning.starts_with("quarantined files")) return "QUARANTINED_FILES";
  if (warning.starts_with("disk failed")) return "DISK_FAILED";
  if (warning.starts_with("io_uring is refused")) return "IO_URING_REFUSED";
  if (warning.starts_with("the keeper is lost")) return "KEEPER_LOST";
  if (warning.starts_with("the keeper ")) return "KEEPER_SHARED";
  if (warning.starts_with("the clock is ")) return "CLOCK_SKEWED";
  if (warning.starts_with("invariant violated")) return "INVARIANT_VIOLATED";
  return "NODE_WARNING";
}

}  // namespace holdfast::coord
