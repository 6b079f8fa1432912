#pragma once

#include <string>

#include "coordinator/api/coordinator.pb.h"
#include "coordinator/state/state.h"

// The answers to operators, written from the state into their messages.

namespace holdfast::coord {

void FillStatus(const State& state, const std::string& cluster, Epoch epoch, const std::string& job,
                coordinator::GetStatusReply* reply);
void FillAdopted(const std::vector<AdoptedVersion>& adopted, coordinator::AdoptReply* reply);
void FillVersions(const State& state, const coordinator::ListVersionsRequest& request,
                  coordinator::ListVersionsReply* reply);
void FillRestorePlan(const State& state, const coordinator::PlanRestoreRequest& request,
                     coordinator::PlanRestoreReply* reply);
void FillWithout(const State& state, const coordinator::WhatIfLostRequest& request,
                 coordinator::WhatIfLostReply* reply);

}  // namespace holdfast::coord
