#include "base/job_name.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/ids.h"

namespace holdfast {
namespace {
// docs/formats/volume.md: the root of a data directory.
constexpr std::array<std::string_view, 5> kReserved = {"HOLDFAST", "quarantine", kAgentFileName,
                                                       kSeenLifeName, kCommitsName};
constexpr std::array<std::string_view, 2> kTemporaries = {"HOLDFAST.tmp.", ".probe-"};
constexpr size_t kRandomLetters = 16;

bool IsTemporary(std::string_view name) {
  return std::any_of(kTemporaries.begin(), kTemporaries.end(), [name](std::string_view prefix) {
    return name.starts_with(prefix) && name.size() == prefix.size() + kRandomLetters &&
           name.find_first_not_of("0123456789abcdef", prefix.size()) == std::string_view::npos;
  });
}
}  // namespace

Status ValidateJobName(std::string_view job) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", job));
  const bool reserved = std::find(kReserved.begin(), kReserved.end(), job) != kReserved.end();
  if (!reserved && !IsTemporary(job)) return Status::Ok();
  return InvalidArgumentError(
      "job '" + std::string(job) +
      "' uses a name that is reserved in data directories; choose another name for "
      "the job");
}

}  // namespace holdfast
