#include "cli/doctor/finding.h"

namespace holdfast::cli {

std::string_view ToString(Readiness readiness) {
  switch (readiness) {
    case Readiness::kOk:
      return "ok";
    case Readiness::kSkipped:
      return "skipped";
    case Readiness::kWarn:
      return "warn";
    case Readiness::kUnknown:
      return "unknown";
    case Readiness::kFail:
      return "FAIL";
  }
  return "?";
}

ExitCode ExitCodeOf(const Findings& findings) {
  ExitCode code = ExitCode::kOk;
  for (const Finding& finding : findings) {
    if (finding.readiness == Readiness::kFail) return ExitCode::kFinding;
    if (finding.readiness == Readiness::kUnknown) code = ExitCode::kPartial;
  }
  return code;
}

}  // namespace holdfast::cli
