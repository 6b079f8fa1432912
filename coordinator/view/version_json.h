#pragma once

#include <string>
#include <vector>

#include "base/json/values.h"
#include "coordinator/api/coordinator.pb.h"

namespace holdfast::view {

/// A version with its job, which VersionInfo lacks.
struct ListedVersion {
  std::string job;
  coordinator::VersionInfo info;
};

/// The worst result of a verification, in the words of `holdfast verify`: "DAMAGED", "MISSING",
/// "UNCHECKED" or "ok".
std::string VerificationResult(const coordinator::Verification& verification);

/// The document of `holdfast versions -o json`. `left_out`: the number of aborted versions that the
/// list lacks.
Json VersionsDocument(const std::vector<ListedVersion>& listed, size_t left_out,
                      int64_t now_wall_nanos);

}  // namespace holdfast::view
