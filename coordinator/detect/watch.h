#pragma once

#include <memory>
#include <tuple>
#include <vector>

#include "coordinator/detect/lateness.h"
#include "coordinator/detect/ring.h"
#include "coordinator/detect/transfer.h"

// The measurements of each communicator, and which communicators are comparable.

namespace holdfast::detect {

/// The measurements of one communicator.
struct Watch {
  Watch(uint32_t members, const DetectorOptions& options, bool small_job)
      : gatherer(members),
        lateness(members, options, small_job),
        transfers(options),
        ring(members) {}
  Gatherer gatherer;
  Lateness lateness;
  TransferMonitor transfers;
  RingWaits ring;
  uint32_t stages_known = ~0U;  // communicators with sends when `spans_stages` was computed
  bool spans_stages = false;
};

/// By communicator; made with its first record.
using Watches = std::vector<std::unique_ptr<Watch>>;

/// Communicators whose members are comparable: same role, same size, and equal work or not. If
/// roles are not reported, the distance between neighbouring members stands for the role: it is
/// the same in all groups of one dimension of the job (tensor, pipeline, data).
using CommClass = std::tuple<CommunicatorRole, bool, size_t, uint32_t>;

/// The class of a communicator. One without records counts as without equal work.
CommClass ClassOf(Index comm, const Watches& watches, const Table& table);

}  // namespace holdfast::detect
