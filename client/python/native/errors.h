#pragma once

#include <holdfast/holdfast.h>
#include <nanobind/nanobind.h>

#include <optional>
#include <string>

namespace holdfast::python {

/// Raises the exception of `error.code` when `code` is an error. Needs the GIL.
void Check(holdfast_code code, const holdfast_error& error);

/// Raises the exception of `code` with this message.
void Raise(holdfast_code code, const std::string& message);

/// While it exists and the library waits, Ctrl-C ends the wait; Check() then raises what Python
/// made of it. Made and destroyed with the GIL or without.
class Interruptible {
 public:
  Interruptible();
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
};

/// The characters, or nullptr for none.
inline const char* OrNull(const std::optional<std::string>& text) {
  return text ? text->c_str() : nullptr;
}

}  // namespace holdfast::python
