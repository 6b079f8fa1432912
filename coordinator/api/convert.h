#pragma once

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/api/coordinator.pb.h"
#include "coordinator/api/types.h"
#include "storage/base/status.h"

// Between coordinator.proto (namespace holdfast::coordinator) and types.h (namespace
// holdfast::coord). FromProto checks names, tiers, ranks, worlds and groups, since it is where they
// arrive: what it returns needs no further check.

namespace holdfast::coord {

namespace pb = ::holdfast::coordinator;

/// The first `most` bytes of a text, cut before a character that would be cut in two: UTF-8 stays
/// UTF-8, without which no message would be parsed.
std::string CutText(std::string_view text, size_t most);

VersionId FromProto(const pb::Version& version);
void ToProto(VersionId version, pb::Version* out);
/// Refuses a version whose incarnation is 0: "none" where a version must be named; and numbers that
/// no job gets to (kVersionNumberMax).
Result<VersionId> NamedVersion(const pb::Version& version);

Status FromProto(const pb::Outcome& outcome);
void ToProto(const Status& status, pb::Outcome* out);

Result<Tier> TierFromNumber(uint32_t number);

Result<Holding> FromProto(const pb::Holding& holding);
void ToProto(const Holding& holding, pb::Holding* out);
Result<Missing> FromProto(const pb::Missing& missing);
void ToProto(const Missing& missing, pb::Missing* out);
Result<Gone> FromProto(const pb::Gone& gone);
void ToProto(const Gone& gone, pb::Gone* out);
Prepared FromProto(const pb::Prepared& prepared);
void ToProto(const Prepared& prepared, pb::Prepared* out);

Result<PeerGroup> FromProto(const pb::PeerGroup& group);
void ToProto(const PeerGroup& group, pb::PeerGroup* out);
/// At most 64 labels with names as ValidateName takes them and printable values up to 256 bytes.
Result<Labels> FromProto(const google::protobuf::Map<std::string, std::string>& labels);

Result<JobWord> FromProto(const pb::JobState& word);
void ToProto(const JobWord& word, pb::JobState* out);
Result<PrepareOrder> FromProto(const pb::PrepareShard& order);
void ToProto(const PrepareOrder& order, pb::PrepareShard* out);
Result<RemoveOrder> FromProto(const pb::RemoveVersion& order);
void ToProto(const RemoveOrder& order, pb::RemoveVersion* out);

Result<LocalRank> FromProto(const pb::LocalRank& rank);
void ToProto(const LocalRank& rank, pb::LocalRank* out);
Result<TierWanted> FromProto(const pb::TierWanted& wanted);
void ToProto(const TierWanted& wanted, pb::TierWanted* out);

/// An error where a reply has no Outcome, as when Attach is refused: the nearest gRPC code, with
/// our number in the details.
grpc::Status ToGrpc(const Status& status);
/// The reverse; a failure of the transport itself becomes Unavailable, DeadlineExceeded or
/// Cancelled, with `endpoint` and the remedy in the text.
Status FromGrpc(const grpc::Status& status, const std::string& endpoint);

}  // namespace holdfast::coord
