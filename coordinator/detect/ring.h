#pragma once

#include <cstdint>
#include <vector>

// How long the members of a ring wait in their receives. The slowest member waits least, and each
// other member waits for as long as it is faster. The own times do not show this: a member computes
// while its sends wait for a slower neighbour, and that time counts as blocked.

namespace holdfast::detect {

class RingWaits {
 public:
  explicit RingWaits(uint32_t members) : waits_(members) {}

  /// Adds a receive of one member, with its times on the member's clock.
  void Add(uint32_t position, uint64_t started_ns, uint64_t ended_ns);
  /// Returns, by position, how late the members are, as shares of the lateness of the member at
  /// `position`. Empty while it is unknown, and if this member waits as long as the usual one.
  std::vector<double> SharesOf(uint32_t position) const;
  /// Whether the members wait so differently that some of them are much slower than others.
  bool differs() const;

 private:
  struct Wait {
    double mean_ns = 0;
    uint64_t started_ns = 0;  // the last receive; 0: none
    double interval_ns = 0;   // mean time between the starts of two receives
    uint32_t receives = 0;    // at most kRemembered
  };
  std::vector<Wait> waits_;
};

}  // namespace holdfast::detect
