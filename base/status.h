#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace holdfast {

// The one table of errors. The numbers are stable: the wire protocol, the C API and exit codes use
// them. Append; never renumber.
#define HOLDFAST_ERROR_TABLE(X)                                                           \
  X(0, Ok, "ok")                                                                          \
  X(1, InvalidArgument, "the caller passed something that can never work")                \
  X(2, NotFound, "the named thing does not exist")                                        \
  X(3, AlreadyExists, "the named thing exists and may not be replaced")                   \
  X(4, PermissionDenied, "this user may not do that")                                     \
  X(5, FailedPrecondition, "not possible in the current state")                           \
  X(6, ResourceExhausted, "a fixed budget (slots, arena, queue) is used up")              \
  X(7, OutOfSpace, "the file system or quota is full")                                    \
  X(8, IoError, "the device or kernel refused an operation")                              \
  X(9, DataLoss, "bytes are missing or do not match their checksum")                      \
  X(10, Unavailable, "the other side cannot be reached now; trying again later can help") \
  X(11, DeadlineExceeded, "not finished in the time given")                               \
  X(12, Aborted, "given up in favour of something newer")                                 \
  X(13, Fenced, "an older incarnation or epoch; its successor is in charge")              \
  X(14, Unsupported, "a newer format or a feature this build or machine lacks")           \
  X(15, Cancelled, "the caller cancelled it")                                             \
  X(16, Internal, "a defect in Holdfast; please report it")

enum class ErrorCode : uint8_t {
#define X(number, name, text) k##name = number,
  HOLDFAST_ERROR_TABLE(X)
#undef X
};

/// Returns e.g. "DataLoss" for kDataLoss, and "Unknown" for a number outside the table.
std::string_view ErrorName(ErrorCode code);
/// Returns the table's text for `code`.
std::string_view ErrorText(ErrorCode code);
/// Returns the code of a number from the wire; numbers outside the table become kInternal.
ErrorCode ErrorFromNumber(uint32_t number);

/// An error code and a message for the user: what is wrong and what to do. OK carries no text.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }
  bool ok() const { return code_ == ErrorCode::kOk; }
  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  /// Returns e.g. "DataLoss: chunk 3 of …", or "ok".
  std::string ToString() const;
  /// Returns the same error with `context` and a colon before its message.
  Status WithContext(std::string_view context) const;

  friend bool operator==(const Status& a, const Status& b) {
    return a.code_ == b.code_ && a.message_ == b.message_;
  }

 private:
  ErrorCode code_ = ErrorCode::kOk;
  std::string message_;
};

#define X(number, name, text)                              \
  inline Status name##Error(std::string message) {         \
    return Status(ErrorCode::k##name, std::move(message)); \
  }
HOLDFAST_ERROR_TABLE(X)
#undef X

/// Returns the status for an errno value, e.g. ErrnoStatus(ENOSPC, "fallocate /data/x") →
/// OutOfSpace.
Status ErrnoStatus(int error, std::string_view what);

template <typename T>
using Result = tl::expected<T, Status>;

/// Shorthand for `return tl::unexpected(status)` where the return type is Result<T>.
inline tl::unexpected<Status> Fail(Status status) {
  return tl::unexpected<Status>(std::move(status));
}

namespace status_internal {
inline Status ToStatus(Status status) { return status; }
template <typename T>
Status ToStatus(Result<T>&& result) {
  return std::move(result).error();
}
/// Converts to either Status or Result<T>, so that the macros below work with both return types.
class Failure {
 public:
  explicit Failure(Status status) : status_(std::move(status)) {}
  // NOLINTNEXTLINE(google-explicit-constructor): the point of the type.
  operator Status() && { return std::move(status_); }
  template <typename T>
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator Result<T>() && {
    return tl::unexpected<Status>(std::move(status_));
  }

 private:
  Status status_;
};
}  // namespace status_internal

#define HOLDFAST_CONCAT_INNER(a, b) a##b
#define HOLDFAST_CONCAT(a, b) HOLDFAST_CONCAT_INNER(a, b)

/// Evaluates a Status expression and returns from the enclosing function when it is an error.
#define HOLDFAST_RETURN_IF_ERROR(expr)                                          \
  do {                                                                          \
    ::holdfast::Status holdfast_status_ = (expr);                               \
    if (!holdfast_status_.ok())                                                 \
      return ::holdfast::status_internal::Failure(std::move(holdfast_status_)); \
  } while (false)

/// HOLDFAST_ASSIGN_OR_RETURN(auto file, Open(path)) assigns the value of a Result, or returns its
/// error from the enclosing function.
#define HOLDFAST_ASSIGN_OR_RETURN(declaration, expr) \
  HOLDFAST_ASSIGN_OR_RETURN_INNER(HOLDFAST_CONCAT(holdfast_result_, __LINE__), declaration, expr)
#define HOLDFAST_ASSIGN_OR_RETURN_INNER(result, declaration, expr)                     \
  auto result = (expr);                                                                \
  if (!result) return ::holdfast::status_internal::Failure(std::move(result).error()); \
  declaration = *std::move(result)

}  // namespace holdfast
