#pragma once

#include <grpcpp/support/status.h>

#include <optional>
#include <string>

#include "base/status.h"
#include "coordinator/api/coordinator.pb.h"
#include "coordinator/contract/directives.h"
#include "coordinator/contract/reports.h"
#include "coordinator/contract/requests.h"

// Conversion between coordinator.proto (namespace holdfast::coordinator) and the plain values of
// coordinator/contract. FromProto checks names, tiers, ranks, worlds and groups; the values it
// returns need no further check.

namespace holdfast::coord {

namespace pb = ::holdfast::coordinator;

VersionId FromProto(const pb::Version& version);
void ToProto(VersionId version, pb::Version* out);
/// Writes incarnation 0 for none.
void ToProto(const std::optional<VersionId>& version, pb::Version* out);
/// Returns nothing for incarnation 0: on the wire, it stands for "none", and in requests for the
/// newest version.
std::optional<VersionId> AnyVersion(const pb::Version& version);
/// Converts a version that must be set. InvalidArgument for incarnation 0 ("none") and for numbers
/// above kVersionNumberMax, which no job reaches.
Result<VersionId> NamedVersion(const pb::Version& version);

/// A number of milliseconds or steps that is absent, on the wire.
inline constexpr int64_t kNoNumber = -1;
/// Returns nothing for a negative number.
std::optional<int64_t> AnyNumber(int64_t number);

Status FromProto(const pb::Outcome& outcome);
void ToProto(const Status& status, pb::Outcome* out);

Result<Tier> TierFromNumber(uint32_t number);

Result<StoredReplica> FromProto(const pb::StoredReplica& report);
void ToProto(const StoredReplica& report, pb::StoredReplica* out);
Result<FailedReplica> FromProto(const pb::FailedReplica& failed);
void ToProto(const FailedReplica& failed, pb::FailedReplica* out);
Result<RemovedReplica> FromProto(const pb::RemovedReplica& removed);
void ToProto(const RemovedReplica& removed, pb::RemovedReplica* out);
Prepared FromProto(const pb::Prepared& prepared);
void ToProto(const Prepared& prepared, pb::Prepared* out);

Result<GroupPlan> FromProto(const pb::GroupPlan& group);
void ToProto(const GroupPlan& group, pb::GroupPlan* out);
/// Accepts at most 64 labels. ValidateName must accept each name; values are printable ASCII of at
/// most 256 bytes.
Result<Labels> FromProto(const google::protobuf::Map<std::string, std::string>& labels);

Result<VersionCommit> FromProto(const pb::VersionCommit& commit);
void ToProto(const VersionCommit& commit, pb::VersionCommit* out);
Result<JobState> FromProto(const pb::JobState& state);
void ToProto(const JobState& state, pb::JobState* out);
Result<PrepareShard> FromProto(const pb::PrepareShard& directive);
void ToProto(const PrepareShard& directive, pb::PrepareShard* out);
Result<RemoveVersion> FromProto(const pb::RemoveVersion& directive);
void ToProto(const RemoveVersion& directive, pb::RemoveVersion* out);

Result<LocalRank> FromProto(const pb::LocalRank& rank);
void ToProto(const LocalRank& rank, pb::LocalRank* out);
/// Limits both numbers to kArenaBytesMax.
ArenaUse FromProto(const pb::ArenaUse& use);
void ToProto(const ArenaUse& use, pb::ArenaUse* out);
Result<TierWanted> FromProto(const pb::TierWanted& wanted);
void ToProto(const TierWanted& wanted, pb::TierWanted* out);

/// `out` gets no node. The request of an older agent, whose `start` is 0, has no joined_before.
Result<JoinRequest> FromProto(const pb::JoinRequest& request);
void ToProto(const JoinRequest& request, pb::JoinRequest* out);
/// `out` gets no node, and the result no timeout.
Result<RestoreRequest> FromProto(const pb::DecideRestoreRequest& request);
void ToProto(const RestoreRequest& request, pb::DecideRestoreRequest* out);
Result<VersionPlaces> FromProto(const pb::PlanRestoreReply& reply);
Result<RestoreDecision> FromProto(const pb::DecideRestoreReply& reply);

/// Converts an error for a call whose reply has no Outcome, such as a refused Attach. Returns the
/// nearest gRPC code, with the ErrorCode number in the details.
grpc::Status ToGrpc(const Status& status);
/// Converts the result of a call back. A failure of the transport itself becomes Unavailable,
/// DeadlineExceeded, Cancelled, Unsupported or ResourceExhausted, with `endpoint` in the text.
Status FromGrpc(const grpc::Status& status, const std::string& endpoint);

}  // namespace holdfast::coord
