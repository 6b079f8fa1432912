#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/certificates/request.h"
#include "base/status.h"

namespace holdfast::certificates {

/// What a machine or person without a certificate sends to join: its token and a request. All of
/// the text is the sender's, and nothing of it is proved.
struct Enrollment {
  std::string token_id;
  std::string secret;
  std::string name;
  std::string request_pem;
  std::vector<std::string> hosts;
};

/// What the checks of an enrollment return.
struct CheckedEnrollment {
  Request request;
  std::vector<std::string> hosts;  // of an agent's certificate: its name and what it asks for
};

/// Checks the form of an enrollment, before its token is searched for. InvalidArgument: the message
/// names the field, and contains nothing of the secret.
Result<CheckedEnrollment> CheckEnrollment(const Enrollment& enrollment);

/// Returns the hosts of the certificate of node `name`: its name, and the hosts that it asks for.
/// InvalidArgument: too many, or one that is no host.
Result<std::vector<std::string>> HostsOfNode(const std::string& name,
                                             const std::vector<std::string>& asked);

}  // namespace holdfast::certificates
