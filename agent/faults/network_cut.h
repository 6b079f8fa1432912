#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/hand/hand.h"
#include "storage/base/status.h"

// Cuts a node off from others, or makes its links to them slow, with a packet filter (nftables) in
// the network namespace of this process.

namespace holdfast::agent {

inline constexpr size_t kCutAddressesMax = 4096;
/// Below, a single packet of a fast network card would not pass at all.
inline constexpr uint64_t kCutRateMin = 64 << 10;
inline constexpr uint64_t kCutRateMax = 100ULL << 30;

using coord::CutOrder;

/// InvalidArgument: not 1 to 4096 IP addresses of other machines, or no possible rate.
Status CheckCut(const CutOrder& order);
/// The filter in nft's language. SSH passes: who repairs must get in. `order` is checked.
std::string CutRules(const CutOrder& order);

/// The filter is in force as long as this lives. The kernel ties it to this process: however it
/// ends, nothing is left.
class NetworkCut {
 public:
  /// FailedPrecondition: libnftables is not installed, this process may not, or the kernel cannot.
  static Result<NetworkCut> Make(const CutOrder& order) { return Apply(order, false); }
  /// Only asks the kernel whether it would.
  static Status Rehearse(const CutOrder& order);

 private:
  using Context = std::unique_ptr<void, void (*)(void*)>;  // owns the filter
  static Result<NetworkCut> Apply(const CutOrder& order, bool dry_run);
  explicit NetworkCut(Context context) : context_(std::move(context)) {}

  Context context_;
};

}  // namespace holdfast::agent
