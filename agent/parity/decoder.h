#pragma once

#include <memory>

#include "agent/parity/member_streams.h"

namespace holdfast::agent {

/// Serves PeerRequestKind::kDecode: decodes one segment of a stripe from k others of reachable
/// members, a unit at a time. Segments on this node are read locally. `request.group` is the plan,
/// which names what each member has of the version. A member that cannot deliver its bytes at a
/// position, because of a bad chunk or because it does not answer, is an erasure at that position
/// only. The sources verify their bytes; the caller must verify the result against the seal of the
/// requested shard.
Result<std::unique_ptr<PeerReader>> OpenDecoder(const PeerRequest& request, const std::string& self,
                                                PeerSource& local, PeerTransport& transport,
                                                Clock& clock);

}  // namespace holdfast::agent
