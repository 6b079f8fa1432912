#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "faults/api/order.h"

// Cuts a node off from others, or slows its links to them, with a packet filter (nftables) in the
// network namespace of this process.

namespace holdfast::faults {

inline constexpr size_t kCutAddressesMax = 4096;
/// Below this rate a single packet of a fast network card would not pass at all.
inline constexpr uint64_t kCutRateMin = 64 << 10;
inline constexpr uint64_t kCutRateMax = 100ULL << 30;

/// Checks a request. InvalidArgument: not 1 to 4096 IP addresses of other machines, or a rate out
/// of range.
Status CheckCut(const CutOrder& request);
/// Returns the filter in nft's language for a valid `request`. SSH passes, so that operators can
/// log in.
std::string CutRules(const CutOrder& request);

/// A filter that is active while this object lives. The kernel removes it at the end of this
/// process, however the process ends.
class NetworkCut {
 public:
  /// Activates the filter. FailedPrecondition: libnftables is not installed, this process lacks the
  /// privilege, or the kernel lacks the feature.
  static Result<NetworkCut> Make(const CutOrder& request) { return Apply(request, false); }
  /// Checks with the kernel whether Make() would work, and changes nothing.
  static Status Rehearse(const CutOrder& request);

 private:
  using Context = std::unique_ptr<void, void (*)(void*)>;  // owns the filter
  static Result<NetworkCut> Apply(const CutOrder& request, bool dry_run);
  explicit NetworkCut(Context context) : context_(std::move(context)) {}

  Context context_;
};

}  // namespace holdfast::faults
