#pragma once

#include "coordinator/api/coordinator.pb.h"
#include "storage/collective/collective.h"

// Conversion between the telemetry messages of coordinator.proto and storage/collective. The agent
// uses ToProto, the coordinator FromProto. Numbers without an enumerator become kOther or kUnknown.
// Nothing else is checked here: the detector refuses implausible values.

namespace holdfast::coord {

namespace pb = ::holdfast::coordinator;

StepTime FromProto(const pb::StepTime& step);
void ToProto(const StepTime& step, pb::StepTime* out);

Communicator FromProto(const pb::Communicator& communicator);
void ToProto(const Communicator& communicator, pb::Communicator* out);

/// The message has no step, device time, channels, source, flags or peer.
CollectiveRecord FromProto(const pb::CollectiveRecord& record);
void ToProto(const CollectiveRecord& record, pb::CollectiveRecord* out);

/// The message does not have the age of the edge.
InFlight FromProto(const pb::InFlight& flight);
void ToProto(const InFlight& flight, pb::InFlight* out);

CompletedCount FromProto(const pb::CompletedCount& completed);
void ToProto(const CompletedCount& completed, pb::CompletedCount* out);

/// The message has only one of the four times: the transfer of a send, or the wait of a receive for
/// its peer.
PeerTransfers FromProto(const pb::PeerTransfers& transfers);
void ToProto(const PeerTransfers& transfers, pb::PeerTransfers* out);

}  // namespace holdfast::coord
