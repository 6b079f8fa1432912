#include "coordinator/view/incident_json.h"

#include <string>
#include <vector>

#include "base/clock.h"
#include "coordinator/api/convert.h"

namespace holdfast::view {

using coord::AnyNumber;
using coord::AnyVersion;

std::optional<int64_t> PlaceMs(const coordinator::Incident& incident) {
  return incident.has_place_ms() ? AnyNumber(incident.place_ms()) : std::nullopt;
}

Json IncidentJson(const coordinator::Incident& incident) {
  return {{"id", incident.id()},
          {"job", incident.job()},
          {"time", TimeJson(incident.wall_nanos())},
          {"kind", incident.kind()},
          {"what", incident.what()},
          {"evidence",
           std::vector<std::string>(incident.evidence().begin(), incident.evidence().end())},
          {"ranks", std::vector<uint32_t>(incident.ranks().begin(), incident.ranks().end())},
          {"nodes", std::vector<std::string>(incident.nodes().begin(), incident.nodes().end())},
          {"plan", incident.plan()},
          {"state", incident.state()},
          {"detect_ms", NumberOrNull(AnyNumber(incident.detect_ms()))},
          {"decide_ms", NumberOrNull(AnyNumber(incident.decide_ms()))},
          {"stop_ms", NumberOrNull(AnyNumber(incident.stop_ms()))},
          {"place_ms", NumberOrNull(PlaceMs(incident))},
          {"restore_ms", NumberOrNull(AnyNumber(incident.restore_ms()))},
          {"first_step_ms", NumberOrNull(AnyNumber(incident.first_step_ms()))},
          {"lost_steps", NumberOrNull(AnyNumber(incident.lost_steps()))},
          {"restored", VersionJson(AnyVersion(incident.restored()))}};
}

Json IncidentsDocument(const coordinator::ListIncidentsReply& reply, int64_t now_wall_nanos) {
  Json list = Json::array();
  for (const auto& incident : reply.incidents()) list.push_back(IncidentJson(incident));
  return {{"time", FormatUtc(now_wall_nanos)}, {"incidents", list}};
}

}  // namespace holdfast::view
