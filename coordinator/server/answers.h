#pragma once

#include <string>

#include "coordinator/api/coordinator.pb.h"
#include "coordinator/state/state.h"

// Fills the replies to operators from the state.

namespace holdfast::coord {

void FillStatus(const State& state, const std::string& cluster, Epoch epoch, const std::string& job,
                coordinator::GetStatusReply* reply);
void FillAdopted(const std::vector<AdoptedVersion>& adopted, coordinator::AdoptReply* reply);
void FillVersions(const State& state, const coordinator::ListVersionsRequest& request,
                  coordinator::ListVersionsReply* reply);
void FillRestorePlan(const State& state, const coordinator::PlanRestoreRequest& request,
                     coordinator::PlanRestoreReply* reply);
void FillDrain(const State& state, const std::string& node, coordinator::GetDrainReply* reply);
void FillImpact(const State& state, const coordinator::WhatIfLostRequest& request,
                coordinator::WhatIfLostReply* reply);

}  // namespace holdfast::coord
