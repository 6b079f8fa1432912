#include "cli/core/exit_code.h"

namespace holdfast::cli {

ExitCode ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case ErrorCode::kOk:
      return ExitCode::kOk;
    case ErrorCode::kNotFound:
      return ExitCode::kNotFound;
    case ErrorCode::kDataLoss:
      return ExitCode::kFinding;
    case ErrorCode::kUnavailable:
      return ExitCode::kUnreachable;
    case ErrorCode::kDeadlineExceeded:
      return ExitCode::kTimeout;
    case ErrorCode::kFenced:
      return ExitCode::kFenced;
    case ErrorCode::kCancelled:
      return ExitCode::kInterrupted;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kAlreadyExists:
    case ErrorCode::kPermissionDenied:
    case ErrorCode::kFailedPrecondition:
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kOutOfSpace:
    case ErrorCode::kIoError:
    case ErrorCode::kAborted:
    case ErrorCode::kUnsupported:
    case ErrorCode::kInternal:
      return ExitCode::kError;
  }
  return ExitCode::kError;
}

namespace {
/// Findings are more severe than partial results, and errors more than findings.
int Severity(ExitCode code) {
  switch (code) {
    case ExitCode::kOk:
      return 0;
    case ExitCode::kPartial:
      return 1;
    case ExitCode::kFinding:
      return 2;
    default:
      return 3;
  }
}
}  // namespace

ExitCode Worse(ExitCode a, ExitCode b) { return Severity(a) >= Severity(b) ? a : b; }

}  // namespace holdfast::cli
