#pragma once

#include <memory>

#include "agent/parity/member_streams.h"

namespace holdfast::agent {

/// Serves PeerRequestKind::kDecode: one segment of a stripe, made from k others that present
/// members hold, a unit at a time; what lies on this node goes over no wire. `request.group` is the
/// plan, saying who has what of the version. The bytes are checked where they
/// come from; whoever gets the segment checks the result against the lost shard's seal.
Result<std::unique_ptr<PeerReader>> OpenDecoder(const PeerRequest& request, const std::string& self,
                                                PeerSource& local, PeerTransport& transport);

}  // namespace holdfast::agent
