#pragma once

#include <holdfast/holdfast.h>

#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "agent/api/messages.h"
#include "base/status.h"
#include "client/core/client.h"

// Helpers that the files implementing holdfast.h share.

struct holdfast_client {
  std::unique_ptr<holdfast::client::Client> core;
};

namespace holdfast::client {

inline holdfast_code Report(const Outcome& outcome, holdfast_error* error) {
  auto code = static_cast<holdfast_code>(outcome.status.code());
  if (error != nullptr) {
    error->code = code;
    error->asynchronous = outcome.asynchronous ? 1 : 0;
    error->step = outcome.step;
    agent::PutText(error->message, outcome.status.message());
  }
  return code;
}

inline holdfast_code Report(Status status, holdfast_error* error) {
  return Report(Outcome{std::move(status)}, error);
}

/// Converts `wanted`. NULL means the newest version.
inline Result<std::optional<VersionId>> WantedVersion(const holdfast_version* wanted) {
  if (wanted == nullptr) return std::optional<VersionId>();
  if (wanted->incarnation == 0) {
    return Fail(InvalidArgumentError("incarnations count from 1; pass NULL for the newest"));
  }
  return std::optional<VersionId>({Incarnation{wanted->incarnation}, Step{wanted->step}});
}

/// Runs `body`, which returns a Status or an Outcome, and turns exceptions into error codes: none
/// may leave through C. The standard library may throw bad_alloc.
template <typename Body>
holdfast_code Guarded(holdfast_error* error, Body body) {
  try {
    return Report(body(), error);
  } catch (const std::bad_alloc&) {
    return Report(ResourceExhaustedError("out of memory"), error);
  } catch (...) {
    return Report(InternalError("unexpected exception"), error);
  }
}

}  // namespace holdfast::client
