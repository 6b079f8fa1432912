#pragma once

namespace holdfast {

/// Whether this process has a capability of <linux/capability.h>, such as CAP_CHOWN, in effect.
bool HasCapability(int capability);

}  // namespace holdfast
