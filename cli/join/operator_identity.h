#pragma once

#include "base/clock.h"
#include "base/status.h"
#include "cli/core/options.h"

namespace holdfast::cli {

/// Renews the operator's certificate if it is of a cluster's authority, is in one file with its
/// key, and two thirds of its time have passed. Returns FailedPrecondition for a certificate that
/// has ended or is not valid yet: no server accepts it. A renewal that fails is tried again by the
/// next command.
Status KeepOperatorIdentity(const GlobalOptions& options, const Clock& clock);

}  // namespace holdfast::cli
