#include "base/certificates/enrollment.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/certificates/authority.h"
#include "base/ids.h"

namespace holdfast::certificates {
namespace {
constexpr size_t kHostsMax = 8;
constexpr size_t kSecretBytesMax = 256;
}  // namespace

Result<std::vector<std::string>> HostsOfNode(const std::string& name,
                                             const std::vector<std::string>& asked) {
  if (asked.size() > kHostsMax) {
    return Fail(InvalidArgumentError(
        fmt::format("{} hosts in one certificate; the limit is {}", asked.size(), kHostsMax)));
  }
  std::vector<std::string> hosts{name};
  for (const std::string& host : asked) {
    HOLDFAST_RETURN_IF_ERROR(ValidateHost("host", host));
    if (std::ranges::find(hosts, host) == hosts.end()) hosts.push_back(host);
  }
  return hosts;
}

Result<CheckedEnrollment> CheckEnrollment(const Enrollment& enrollment) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("name", enrollment.name));
  if (enrollment.secret.size() > kSecretBytesMax || enrollment.token_id.size() > kSecretBytesMax) {
    return Fail(InvalidArgumentError("a token of that length does not exist"));
  }
  HOLDFAST_ASSIGN_OR_RETURN(Request request, Request::FromPem(enrollment.request_pem));
  HOLDFAST_ASSIGN_OR_RETURN(auto hosts, HostsOfNode(enrollment.name, enrollment.hosts));
  return CheckedEnrollment{std::move(request), std::move(hosts)};
}

}  // namespace holdfast::certificates
