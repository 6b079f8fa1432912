#pragma once

#include <memory>

#include "agent/parity/member_streams.h"

namespace holdfast::agent {

/// Serves PeerRequestKind::kDecode: one segment of a stripe, made from k others that present
/// members hold, a unit at a time; what lies on this node goes over no wire. `request.group` is the
/// plan, saying who has what of the version. A member that does not give its bytes at some place,
/// because a chunk of them is bad or because it does not answer, counts as lost for that place
/// only. The bytes are checked where they come from; whoever gets the segment checks the result
/// against the wanted shard's seal.
Result<std::unique_ptr<PeerReader>> OpenDecoder(const PeerRequest& request, const std::string& self,
                                                PeerSource& local, PeerTransport& transport);

}  // namespace holdfast::agent
