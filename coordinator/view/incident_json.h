#pragma once

#include <cstdint>
#include <optional>

#include "base/json/values.h"
#include "coordinator/api/coordinator.pb.h"

namespace holdfast::view {

/// Milliseconds until all workers of the new launch run; nullopt: not yet, or an older coordinator.
std::optional<int64_t> PlaceMs(const coordinator::Incident& incident);
/// The document of `holdfast incidents show ID -o json`.
Json IncidentJson(const coordinator::Incident& incident);
/// The document of `holdfast incidents -o json`.
Json IncidentsDocument(const coordinator::ListIncidentsReply& reply, int64_t now_wall_nanos);

}  // namespace holdfast::view
