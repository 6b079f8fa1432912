#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json/values.h"
#include "coordinator/api/coordinator.pb.h"

namespace holdfast::view {

/// Returns the steps that the job would train again; nullopt: nothing could be restored.
std::optional<uint64_t> StepsLost(const coordinator::JobImpact& job);

/// The document of `holdfast advise --without NODES -o json`.
Json ImpactDocument(const coordinator::WhatIfLostReply& reply,
                    const std::vector<std::string>& nodes);

}  // namespace holdfast::view
