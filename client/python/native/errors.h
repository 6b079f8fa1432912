#pragma once

#include <holdfast/holdfast.h>
#include <nanobind/nanobind.h>

#include <optional>
#include <string>

namespace holdfast::python {

/// Raises the exception for `code`, with the details of `error`, unless `code` is HOLDFAST_OK. If a
/// Python exception is already set, raises that one. Needs the GIL.
void Check(holdfast_code code, const holdfast_error& error);

/// Raises the exception for `code` with this message. Needs the GIL.
void Raise(holdfast_code code, const std::string& message);

/// While an object exists, Ctrl-C ends a wait of the library on this thread. Check() then raises
/// the exception of Python's signal handler. Can be made and destroyed with or without the GIL.
class Interruptible {
 public:
  Interruptible();
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
};

/// Returns the characters, or nullptr if there is no text.
inline const char* OrNull(const std::optional<std::string>& text) {
  return text ? text->c_str() : nullptr;
}

}  // namespace holdfast::python
