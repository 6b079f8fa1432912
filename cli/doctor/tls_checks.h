#pragma once

#include <cstdint>
#include <string>

#include "agent/config/config.h"
#include "cli/doctor/finding.h"

namespace holdfast::cli {

/// Checks the dates of every certificate in the files tls.ca and tls.cert. `renewed`: the agent
/// renews tls.cert after two thirds of its time. `now_nanos`: since 1970. One finding for each
/// file; one that is skipped when TLS is not configured.
Findings CheckTlsDates(const coord::TlsFiles& tls, bool renewed, int64_t now_nanos);

}  // namespace holdfast::cli
