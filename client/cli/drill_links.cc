#include "client/cli/drill_links.h"

#include <fmt/format.h>

#include <set>

#include "client/cli/text.h"
#include "coordinator/api/endpoint.h"

namespace holdfast::cli {

Result<std::vector<std::string>> AddressesOfOthers(const coordinator::GetStatusReply& status,
                                                   const std::string& node) {
  std::set<std::string> addresses;
  for (const auto& other : status.nodes()) {
    if (other.node() == node) continue;
    for (const std::string& text : {other.peer_address(), other.data_address()}) {
      if (text.empty()) continue;  // takes part in no parity group
      const auto endpoint = coord::ParseEndpoint(text);
      if (!endpoint) return Fail(endpoint.error().WithContext("node " + Printable(other.node())));
      if (endpoint->IsLocal()) continue;
      const auto found = coord::NumericAddresses(*endpoint);
      if (!found) return Fail(found.error().WithContext("node " + Printable(other.node())));
      addresses.insert(found->begin(), found->end());
    }
  }
  if (!addresses.empty()) return std::vector<std::string>(addresses.begin(), addresses.end());
  return Fail(FailedPreconditionError(
      fmt::format("node '{}' reaches no other by an address of its own, only by unix sockets or "
                  "loopback: there is nothing to cut off (peers.listen of the agents)",
                  Printable(node))));
}

}  // namespace holdfast::cli
