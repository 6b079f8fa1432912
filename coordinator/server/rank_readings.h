#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/api/coordinator.pb.h"
#include "coordinator/ui/ui_source.h"

namespace holdfast::coord {

/// The last reading of each rank of one incarnation. Bounded by its world. Thread-compatible.
class RankReadings {
 public:
  /// Notes the ranks of an accepted digest. Ignores ranks outside the world.
  void Note(const std::string& node, const coordinator::Digest& digest);
  /// Returns the readings by rank.
  std::vector<ui::RankReading> All() const;

 private:
  std::map<uint32_t, ui::RankReading> ranks_;
};

}  // namespace holdfast::coord
