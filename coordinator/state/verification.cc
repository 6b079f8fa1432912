#include "coordinator/state/verification.h"

#include <fmt/format.h>

#include "coordinator/state/versions.h"

namespace holdfast::coord {

void OnVersionVerified(Context& context, const VersionVerified& event) {
  const auto job = context.cluster.jobs.find(event.job);
  if (job == context.cluster.jobs.end()) {
    return Answer(context, event.request, NotFoundError(fmt::format("no job '{}'", event.job)));
  }
  const auto version = job->second.versions.find(event.version);
  if (version == job->second.versions.end() || !version->second.committed()) {
    return Answer(context, event.request,
                  NotFoundError(fmt::format("job {} has no committed version {}", event.job,
                                            ToString(event.version))));
  }
  version->second.verification = event.verification;
  version->second.verification->wall_nanos = context.at.wall_nanos;
  StoreVersion(context, job->second, version->second, 0);
  Answer(context, event.request, Status::Ok());
}

}  // namespace holdfast::coord
