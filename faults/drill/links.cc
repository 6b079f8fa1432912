#include "faults/drill/links.h"

#include <fmt/format.h>

#include <set>

#include "base/endpoint.h"
#include "cli/core/text.h"

namespace holdfast::faults {
using cli::Printable;

Result<std::vector<std::string>> LinksOf(const coordinator::GetStatusReply& status,
                                         const std::string& node, const std::string& peer) {
  std::set<std::string> addresses;
  for (const auto& other : status.nodes()) {
    if (other.node() == node || (!peer.empty() && other.node() != peer)) continue;
    for (const std::string& text : {other.peer_address(), other.data_address()}) {
      if (text.empty()) continue;  // is in no parity group
      const auto endpoint = ParseEndpoint(text);
      if (!endpoint) return Fail(endpoint.error().WithContext("node " + Printable(other.node())));
      if (endpoint->IsLocal()) continue;
      const auto found = NumericAddresses(*endpoint);
      if (!found) return Fail(found.error().WithContext("node " + Printable(other.node())));
      addresses.insert(found->begin(), found->end());
    }
  }
  if (!addresses.empty()) return std::vector<std::string>(addresses.begin(), addresses.end());
  return Fail(FailedPreconditionError(fmt::format(
      "node '{}' reaches {} only through unix sockets or loopback, so there is no link "
      "to cut: give the agents' peers.listen an address of the network",
      Printable(node), peer.empty() ? "other nodes" : "node '" + Printable(peer) + "'")));
}

}  // namespace holdfast::faults
