#include "coordinator/state/owner.h"

#include <fmt/format.h>

namespace holdfast::coord {

Status CheckOwner(const std::string& job, std::optional<uint32_t> owner, uint32_t uid) {
  if (!owner) {
    if (uid == kRootUser) return Status::Ok();
    return PermissionDeniedError(fmt::format(
        "the owner of job '{}' is not known, so only root may open it, and this process runs as "
        "uid {}; an operator sets the owner with `holdfast adopt {} --owner USER`",
        job, uid, job));
  }
  if (*owner == uid) return Status::Ok();
  return PermissionDeniedError(fmt::format(
      "job '{}' belongs to uid {}, this process runs as uid {}; choose another job name", job,
      *owner, uid));
}

}  // namespace holdfast::coord
