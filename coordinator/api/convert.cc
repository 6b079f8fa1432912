#include "coordinator/api/convert.h"

#include <fmt/format.h>

#include <charconv>

namespace holdfast::coord {
namespace {
/// Checks what every shard fact has; fills the common fields of Holding, Missing and Gone.
template <typename Fact, typename Proto>
Status ReadFact(const Proto& proto, Fact& fact) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", proto.job()));
  HOLDFAST_ASSIGN_OR_RETURN(fact.version, NamedVersion(proto.version()));
  HOLDFAST_ASSIGN_OR_RETURN(fact.tier, TierFromNumber(proto.tier()));
  if (proto.rank() >= kWorldMax) {
    return InvalidArgumentError(fmt::format("rank {} is beyond {}", proto.rank(), kWorldMax - 1));
  }
  fact.job = proto.job();
  fact.rank = Rank{proto.rank()};
  return Status::Ok();
}

template <typename Fact, typename Proto>
void WriteFact(const Fact& fact, Proto* out) {
  out->set_job(fact.job);
  ToProto(fact.version, out->mutable_version());
  out->set_rank(fact.rank.value);
  out->set_tier(static_cast<uint32_t>(fact.tier));
}

grpc::StatusCode NearestCode(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk:
      return grpc::StatusCode::OK;
    case ErrorCode::kInvalidArgument:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case ErrorCode::kNotFound:
      return grpc::StatusCode::NOT_FOUND;
    case ErrorCode::kAlreadyExists:
      return grpc::StatusCode::ALREADY_EXISTS;
    case ErrorCode::kPermissionDenied:
      return grpc::StatusCode::PERMISSION_DENIED;
    case ErrorCode::kFailedPrecondition:
    case ErrorCode::kFenced:
      return grpc::StatusCode::FAILED_PRECONDITION;
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kOutOfSpace:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case ErrorCode::kDataLoss:
    case ErrorCode::kIoError:
      return grpc::StatusCode::DATA_LOSS;
    case ErrorCode::kUnavailable:
      return grpc::StatusCode::UNAVAILABLE;
    case ErrorCode::kDeadlineExceeded:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    case ErrorCode::kAborted:
      return grpc::StatusCode::ABORTED;
    case ErrorCode::kUnsupported:
      return grpc::StatusCode::UNIMPLEMENTED;
    case ErrorCode::kCancelled:
      return grpc::StatusCode::CANCELLED;
    case ErrorCode::kInternal:
      return grpc::StatusCode::INTERNAL;
  }
  return grpc::StatusCode::INTERNAL;
}
}  // namespace

VersionId FromProto(const pb::Version& version) {
  return {Incarnation{version.incarnation()}, Step{version.step()}};
}

void ToProto(VersionId version, pb::Version* out) {
  out->set_incarnation(version.incarnation.value);
  out->set_step(version.step.value);
}

Result<VersionId> NamedVersion(const pb::Version& version) {
  if (version.incarnation() == 0) {
    return Fail(InvalidArgumentError("a version needs an incarnation from 1"));
  }
  return FromProto(version);
}

Status FromProto(const pb::Outcome& outcome) {
  ErrorCode code = ErrorFromNumber(outcome.code());
  return code == ErrorCode::kOk ? Status::Ok() : Status(code, outcome.message());
}

void ToProto(const Status& status, pb::Outcome* out) {
  out->set_code(static_cast<uint32_t>(status.code()));
  out->set_message(status.message());
}

Result<Tier> TierFromNumber(uint32_t number) {
  switch (number) {
    case static_cast<uint32_t>(Tier::kMemory):
      return Tier::kMemory;
    case static_cast<uint32_t>(Tier::kPeer):
      return Tier::kPeer;
    case static_cast<uint32_t>(Tier::kDisk):
      return Tier::kDisk;
    case static_cast<uint32_t>(Tier::kRemote):
      return Tier::kRemote;
    default:
      return Fail(InvalidArgumentError(
          fmt::format("tier number {}; 1 is memory, 2 peer, 3 disk, 4 remote", number)));
  }
}

Result<Holding> FromProto(const pb::Holding& proto) {
  Holding holding;
  HOLDFAST_RETURN_IF_ERROR(ReadFact(proto, holding));
  if (proto.world() > kWorldMax || proto.rank() >= proto.world()) {
    return Fail(
        InvalidArgumentError(fmt::format("rank {} in a world of {}", proto.rank(), proto.world())));
  }
  holding.world = proto.world();
  holding.digest = proto.digest();
  holding.image_bytes = proto.image_bytes();
  return holding;
}

void ToProto(const Holding& holding, pb::Holding* out) {
  WriteFact(holding, out);
  out->set_world(holding.world);
  out->set_digest(holding.digest);
  out->set_image_bytes(holding.image_bytes);
}

Result<Missing> FromProto(const pb::Missing& proto) {
  Missing missing;
  HOLDFAST_RETURN_IF_ERROR(ReadFact(proto, missing));
  missing.why = proto.why();
  return missing;
}

void ToProto(const Missing& missing, pb::Missing* out) {
  WriteFact(missing, out);
  out->set_why(missing.why);
}

Result<Gone> FromProto(const pb::Gone& proto) {
  Gone gone;
  HOLDFAST_RETURN_IF_ERROR(ReadFact(proto, gone));
  return gone;
}

void ToProto(const Gone& gone, pb::Gone* out) { WriteFact(gone, out); }

Prepared FromProto(const pb::Prepared& proto) {
  return {proto.request(), FromProto(proto.outcome())};
}

void ToProto(const Prepared& prepared, pb::Prepared* out) {
  out->set_request(prepared.request);
  ToProto(prepared.outcome, out->mutable_outcome());
}

Result<JobWord> FromProto(const pb::JobState& proto) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", proto.job()));
  JobWord word;
  word.job = proto.job();
  word.incarnation = Incarnation{proto.incarnation()};
  word.memory_committed = FromProto(proto.memory_committed());
  word.disk_committed = FromProto(proto.disk_committed());
  for (const pb::Version& version : proto.aborted()) word.aborted.push_back(FromProto(version));
  word.disk_target_step = Step{proto.disk_target_step()};
  word.restore = FromProto(proto.restore());
  return word;
}

void ToProto(const JobWord& word, pb::JobState* out) {
  out->set_job(word.job);
  out->set_incarnation(word.incarnation.value);
  ToProto(word.memory_committed, out->mutable_memory_committed());
  ToProto(word.disk_committed, out->mutable_disk_committed());
  for (VersionId version : word.aborted) ToProto(version, out->add_aborted());
  out->set_disk_target_step(word.disk_target_step.value);
  ToProto(word.restore, out->mutable_restore());
}

Result<PrepareOrder> FromProto(const pb::PrepareShard& proto) {
  PrepareOrder order;
  HOLDFAST_RETURN_IF_ERROR(ReadFact(proto, order));
  if (proto.world() > kWorldMax || proto.rank() >= proto.world()) {
    return Fail(
        InvalidArgumentError(fmt::format("rank {} in a world of {}", proto.rank(), proto.world())));
  }
  order.request = proto.request();
  order.world = proto.world();
  order.source_node = proto.source_node();
  order.source_address = proto.source_address();
  order.digest = proto.digest();
  return order;
}

void ToProto(const PrepareOrder& order, pb::PrepareShard* out) {
  WriteFact(order, out);
  out->set_request(order.request);
  out->set_world(order.world);
  out->set_source_node(order.source_node);
  out->set_source_address(order.source_address);
  out->set_digest(order.digest);
}

Result<RemoveOrder> FromProto(const pb::RemoveVersion& proto) {
  RemoveOrder order;
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", proto.job()));
  HOLDFAST_ASSIGN_OR_RETURN(order.version, NamedVersion(proto.version()));
  HOLDFAST_ASSIGN_OR_RETURN(order.tier, TierFromNumber(proto.tier()));
  order.job = proto.job();
  return order;
}

void ToProto(const RemoveOrder& order, pb::RemoveVersion* out) {
  out->set_job(order.job);
  ToProto(order.version, out->mutable_version());
  out->set_tier(static_cast<uint32_t>(order.tier));
}

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {NearestCode(status.code()), status.message(),
          std::to_string(static_cast<uint32_t>(status.code()))};
}

Status FromGrpc(const grpc::Status& status, const std::string& endpoint) {
  if (status.ok()) return Status::Ok();
  const std::string& details = status.error_details();
  uint32_t number = 0;
  auto parsed = std::from_chars(details.data(), details.data() + details.size(), number);
  if (!details.empty() && parsed.ec == std::errc() &&
      parsed.ptr == details.data() + details.size()) {
    return {ErrorFromNumber(number), status.error_message()};
  }
  std::string text = fmt::format("{}: {}", endpoint, status.error_message());
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return DeadlineExceededError(std::move(text));
    case grpc::StatusCode::CANCELLED:
      return CancelledError(std::move(text));
    case grpc::StatusCode::UNIMPLEMENTED:
      return UnsupportedError(text + "; the other side is an older or a different service");
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return ResourceExhaustedError(std::move(text));
    default:
      return UnavailableError(text + "; check that the service runs and the address is right");
  }
}

}  // namespace holdfast::coord
