#pragma once

#include <string>

#include "coordinator/api/coordinator.pb.h"
#include "coordinator/restart/supervisor.h"

// Fills the replies about runs and incidents from the supervisor.

namespace holdfast::coord {

void FillRuns(const Supervisor& supervisor, const std::string& job,
              coordinator::GetRunsReply* reply);
void FillIncidents(const Supervisor& supervisor, const coordinator::ListIncidentsRequest& request,
                   coordinator::ListIncidentsReply* reply);

}  // namespace holdfast::coord
