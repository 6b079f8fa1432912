#include "coordinator/view/impact_json.h"

#include "coordinator/api/convert.h"

namespace holdfast::view {

using coord::AnyVersion;

std::optional<uint64_t> StepsLost(const coordinator::JobImpact& job) {
  const std::optional<VersionId> newest = AnyVersion(job.newest());
  const std::optional<VersionId> fallback = AnyVersion(job.fallback());
  // A newer incarnation continues from a version of an older one, so steps are comparable.
  if (!newest || !fallback || newest->step < fallback->step) return std::nullopt;
  return newest->step.value - fallback->step.value;
}

Json ImpactDocument(const coordinator::WhatIfLostReply& reply,
                    const std::vector<std::string>& nodes) {
  Json list = Json::array();
  bool all = true;
  for (const auto& job : reply.jobs()) {
    all = all && job.keeps();
    const std::optional<uint64_t> steps = StepsLost(job);
    list.push_back({{"job", job.job()},
                    {"newest", VersionJson(AnyVersion(job.newest()))},
                    {"keeps", job.keeps()},
                    {"fallback", VersionJson(AnyVersion(job.fallback()))},
                    {"lost_steps", steps ? Json(*steps) : Json(nullptr)},
                    {"stops", job.stops()},
                    {"why_not", job.why_not()}});
  }
  return {{"nodes", nodes}, {"keeps", all}, {"jobs", list}};
}

}  // namespace holdfast::view
