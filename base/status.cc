#include "base/status.h"

#include <cerrno>
#include <system_error>

namespace holdfast {

std::string_view ErrorName(ErrorCode code) {
  switch (code) {
#define X(number, name, text) \
  case ErrorCode::k##name:    \
    return #name;
    HOLDFAST_ERROR_TABLE(X)
#undef X
  }
  return "Unknown";
}

std::string_view ErrorText(ErrorCode code) {
  switch (code) {
#define X(number, name, text) \
  case ErrorCode::k##name:    \
    return text;
    HOLDFAST_ERROR_TABLE(X)
#undef X
  }
  return "an error number outside the table";
}

ErrorCode ErrorFromNumber(uint32_t number) {
  return number <= static_cast<uint32_t>(ErrorCode::kInternal) ? static_cast<ErrorCode>(number)
                                                               : ErrorCode::kInternal;
}

std::string Status::ToString() const {
  if (ok()) return "ok";
  return std::string(ErrorName(code_)) + ": " + message_;
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) return *this;
  return {code_, std::string(context) + ": " + message_};
}

namespace {
ErrorCode CodeOfErrno(int error) {
  switch (error) {
    case 0:
      return ErrorCode::kOk;
    case ENOENT:
    case ENOTDIR:
      return ErrorCode::kNotFound;
    case EEXIST:
    case ENOTEMPTY:
      return ErrorCode::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return ErrorCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
      return ErrorCode::kOutOfSpace;
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return ErrorCode::kResourceExhausted;
    case EINVAL:
    case ENAMETOOLONG:
    case ELOOP:
      return ErrorCode::kInvalidArgument;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case ENOTCONN:
    case EAGAIN:
      return ErrorCode::kUnavailable;
    case ETIMEDOUT:
      return ErrorCode::kDeadlineExceeded;
    case ENOSYS:
    case EOPNOTSUPP:
      return ErrorCode::kUnsupported;
    case ECANCELED:
      return ErrorCode::kCancelled;
    default:
      return ErrorCode::kIoError;
  }
}
}  // namespace

Status ErrnoStatus(int error, std::string_view what) {
  if (error == 0) return Status::Ok();
  return {CodeOfErrno(error), std::string(what) + ": " + std::generic_category().message(error)};
}

}  // namespace holdfast
