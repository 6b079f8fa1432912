#pragma once

#include "base/tiers.h"
#include "coordinator/api/coordinator.pb.h"

// The fields of messages that exist once for each tier.

namespace holdfast::coord {

namespace pb = ::holdfast::coordinator;

/// Returns the newest version that is committed at the tier, as a JobState or a JobStatus names it.
template <typename Message>
const pb::Version& CommittedAt(const Message& message, Tier tier) {
  switch (tier) {
    case Tier::kPeer:
      return message.peer_committed();
    case Tier::kDisk:
      return message.disk_committed();
    case Tier::kRemote:
      return message.remote_committed();
    case Tier::kMemory:
      break;
  }
  return message.memory_committed();
}

template <typename Message>
pb::Version* MutableCommittedAt(Message* message, Tier tier) {
  switch (tier) {
    case Tier::kPeer:
      return message->mutable_peer_committed();
    case Tier::kDisk:
      return message->mutable_disk_committed();
    case Tier::kRemote:
      return message->mutable_remote_committed();
    case Tier::kMemory:
      break;
  }
  return message->mutable_memory_committed();
}

}  // namespace holdfast::coord
