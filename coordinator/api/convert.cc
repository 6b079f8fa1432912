#include "coordinator/api/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "coordinator/api/endpoint.h"

namespace holdfast::coord {
namespace {
constexpr int kLabelsMax = 64;
constexpr size_t kLabelBytesMax = 256;

/// `rank` is a trainer's below `world`, or a node's parity.
Status CheckRank(uint32_t rank, uint32_t world) {
  if (world != 0 && world <= kWorldMax && RankInWorld(Rank{rank}, world)) return Status::Ok();
  return InvalidArgumentError(fmt::format("{} in a world of {}", ShardName(Rank{rank}), world));
}

/// Checks what every shard fact has; fills the common fields of Holding, Missing and Gone.
template <typename Fact, typename Proto>
Status ReadFact(const Proto& proto, Fact& fact) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", proto.job()));
  HOLDFAST_ASSIGN_OR_RETURN(fact.version, NamedVersion(proto.version()));
  HOLDFAST_ASSIGN_OR_RETURN(fact.tier, TierFromNumber(proto.tier()));
  HOLDFAST_RETURN_IF_ERROR(CheckRank(proto.rank(), kWorldMax));
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

std::string CutText(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  const auto is_middle = [&text](size_t at) {
    return (static_cast<uint8_t>(text[at]) & 0xC0U) == 0x80U;
  };
  while (most > 0 && is_middle(most)) --most;
  return std::string(text.substr(0, most));
}

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
  if (version.incarnation() > kVersionNumberMax || version.step() > kVersionNumberMax) {
    return Fail(InvalidArgumentError(fmt::format("version {}-{}: incarnations and steps go to {}",
                                                 version.incarnation(), version.step(),
                                                 kVersionNumberMax)));
  }
  return FromProto(version);
}

Status FromProto(const pb::Outcome& outcome) {
  ErrorCode code = ErrorFromNumber(outcome.code());
  return code == ErrorCode::kOk ? Status::Ok()
                                : Status(code, CutText(outcome.message(), kFactTextBytesMax));
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
  HOLDFAST_RETURN_IF_ERROR(CheckRank(proto.rank(), proto.world()));
  if (proto.image_bytes() > kSlotBytesMax) {
    return Fail(InvalidArgumentError(fmt::format("{} has {} bytes; at most {}",
                                                 ShardName(Rank{proto.rank()}), proto.image_bytes(),
                                                 kSlotBytesMax)));
  }
  holding.world = proto.world();
  holding.digest = proto.digest();
  holding.image_bytes = proto.image_bytes();
  holding.damage = CutText(proto.damage(), kFactTextBytesMax);
  if (static_cast<size_t>(proto.samples_size()) > kReplicaSamplesMax) {
    return Fail(
        InvalidArgumentError(fmt::format("a holding with {} samples", proto.samples_size())));
  }
  for (const pb::ReplicaSample& sample : proto.samples()) {
    if (sample.tensor().size() > kReplicaSampleNameMax ||
        sample.bytes() > std::numeric_limits<uint64_t>::max() - sample.first()) {
      return Fail(InvalidArgumentError("a sample of a replica whose name or length is too long"));
    }
    holding.samples.push_back({sample.tensor(), sample.first(), sample.bytes(), sample.crc()});
  }
  holding.life = LifeId{proto.life()};
  return holding;
}

void ToProto(const Holding& holding, pb::Holding* out) {
  WriteFact(holding, out);
  out->set_world(holding.world);
  out->set_digest(holding.digest);
  out->set_image_bytes(holding.image_bytes);
  out->set_damage(holding.damage);
  for (const ReplicaSample& sample : holding.samples) {
    pb::ReplicaSample* one = out->add_samples();
    one->set_tensor(sample.tensor);
    one->set_first(sample.first);
    one->set_bytes(sample.bytes);
    one->set_crc(sample.crc);
  }
  out->set_life(holding.life.value);
}

Result<Missing> FromProto(const pb::Missing& proto) {
  Missing missing;
  HOLDFAST_RETURN_IF_ERROR(ReadFact(proto, missing));
  missing.why = CutText(proto.why(), kFactTextBytesMax);
  return missing;
}

void ToProto(const Missing& missing, pb::Missing* out) {
  WriteFact(missing, out);
  out->set_why(missing.why);
}

Result<Gone> FromProto(const pb::Gone& proto) {
  Gone gone;
  HOLDFAST_RETURN_IF_ERROR(ReadFact(proto, gone));
  gone.damage = CutText(proto.damage(), kFactTextBytesMax);
  return gone;
}

void ToProto(const Gone& gone, pb::Gone* out) {
  WriteFact(gone, out);
  out->set_damage(gone.damage);
}

Prepared FromProto(const pb::Prepared& proto) {
  return {proto.request(), FromProto(proto.outcome())};
}

void ToProto(const Prepared& prepared, pb::Prepared* out) {
  out->set_request(prepared.request);
  ToProto(prepared.outcome, out->mutable_outcome());
}

namespace {
Result<PeerMember> ReadMember(const pb::PeerMember& proto) {
  PeerMember member;
  HOLDFAST_RETURN_IF_ERROR(ValidateName("node", proto.node()));
  if (!proto.address().empty()) {
    auto address = ParseEndpoint(proto.address());
    if (!address) return Fail(address.error().WithContext("address of member " + proto.node()));
  }
  if (proto.number() >= kWorldMax || proto.ranks().empty() ||
      static_cast<uint32_t>(proto.ranks_size()) > kPeerRanksMax) {
    return Fail(InvalidArgumentError(fmt::format(
        "member {} has number {} and {} ranks", proto.node(), proto.number(), proto.ranks_size())));
  }
  member.node = proto.node();
  member.address = proto.address();
  member.number = proto.number();
  member.has_data = proto.has_data();
  member.has_parity = proto.has_parity();
  if (!proto.planned().empty()) HOLDFAST_RETURN_IF_ERROR(ValidateName("node", proto.planned()));
  member.planned = proto.planned();
  for (const pb::PeerRank& rank : proto.ranks()) {
    const bool ascending = member.ranks.empty() || member.ranks.back().rank.value < rank.rank();
    if (rank.rank() >= kWorldMax || !ascending || rank.slot_bytes() == 0 ||
        rank.slot_bytes() > kSlotBytesMax || rank.slot_bytes() % kSlotBytesAlign != 0) {
      return Fail(InvalidArgumentError(fmt::format(
          "member {}: rank {} with a slot of {} bytes; ranks ascend and slots are "
          "multiples of {} up to {}",
          proto.node(), rank.rank(), rank.slot_bytes(), kSlotBytesAlign, kSlotBytesMax)));
    }
    member.ranks.push_back({Rank{rank.rank()}, rank.slot_bytes()});
  }
  return member;
}

bool HasRank(const PeerGroup& group, Rank rank) {
  return std::any_of(group.members.begin(), group.members.end(), [rank](const PeerMember& member) {
    if (IsParity(rank)) return member.number == ParityNode(rank);
    return std::any_of(member.ranks.begin(), member.ranks.end(),
                       [rank](const PeerRank& has) { return has.rank == rank; });
  });
}
}  // namespace

Result<PeerGroup> FromProto(const pb::PeerGroup& proto) {
  const uint32_t members = static_cast<uint32_t>(proto.members_size());
  if (members < 2 || members > kPeerGroupNodesMax || proto.parity() == 0 ||
      proto.parity() > kPeerGroupParityMax || proto.parity() >= members) {
    return Fail(InvalidArgumentError(
        fmt::format("a parity group of {} nodes that survives the loss of {}; it has 2 to {} nodes "
                    "and survives the loss of 1 to {}, not of all",
                    members, proto.parity(), kPeerGroupNodesMax, kPeerGroupParityMax)));
  }
  PeerGroup group;
  group.parity = proto.parity();
  for (const pb::PeerMember& member : proto.members()) {
    HOLDFAST_ASSIGN_OR_RETURN(PeerMember read, ReadMember(member));
    group.members.push_back(std::move(read));
  }
  return group;
}

void ToProto(const PeerGroup& group, pb::PeerGroup* out) {
  out->set_parity(group.parity);
  for (const PeerMember& member : group.members) {
    pb::PeerMember* wire = out->add_members();
    wire->set_node(member.node);
    wire->set_address(member.address);
    wire->set_number(member.number);
    wire->set_has_data(member.has_data);
    wire->set_has_parity(member.has_parity);
    wire->set_planned(member.planned);
    for (const PeerRank& rank : member.ranks) {
      pb::PeerRank* wire_rank = wire->add_ranks();
      wire_rank->set_rank(rank.rank.value);
      wire_rank->set_slot_bytes(rank.slot_bytes);
    }
  }
}

Result<Labels> FromProto(const google::protobuf::Map<std::string, std::string>& proto) {
  if (proto.size() > kLabelsMax) {
    return Fail(InvalidArgumentError(
        fmt::format("{} labels; a node has at most {}", proto.size(), kLabelsMax)));
  }
  Labels labels;
  for (const auto& [name, value] : proto) {
    HOLDFAST_RETURN_IF_ERROR(ValidateName("label", name));
    const bool printable =
        std::all_of(value.begin(), value.end(), [](char c) { return c >= 0x20 && c != 0x7f; });
    if (value.size() > kLabelBytesMax || !printable) {
      return Fail(InvalidArgumentError(fmt::format(
          "label '{}': a value has at most {} printable ASCII characters", name, kLabelBytesMax)));
    }
    labels[name] = value;
  }
  return labels;
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
  word.peer_committed = FromProto(proto.peer_committed());
  word.peer_target_step = Step{proto.peer_target_step()};
  const uint32_t phase = std::min(proto.phase(), static_cast<uint32_t>(JobPhase::kFinished));
  word.phase = static_cast<JobPhase>(phase);
  word.release = proto.release();
  word.forget = proto.forget();
  if (proto.has_group()) {
    HOLDFAST_ASSIGN_OR_RETURN(word.group, FromProto(proto.group()));
  }
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
  ToProto(word.peer_committed, out->mutable_peer_committed());
  out->set_peer_target_step(word.peer_target_step.value);
  if (!word.group.members.empty()) ToProto(word.group, out->mutable_group());
  out->set_phase(static_cast<uint32_t>(word.phase));
  out->set_release(word.release);
  out->set_forget(word.forget);
}

Result<LocalRank> FromProto(const pb::LocalRank& proto) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", proto.job()));
  if (proto.rank() >= kWorldMax) return Fail(InvalidArgumentError("a rank beyond any world"));
  return LocalRank{proto.job(), Incarnation{proto.incarnation()}, Rank{proto.rank()},
                   proto.said_goodbye()};
}

void ToProto(const LocalRank& rank, pb::LocalRank* out) {
  out->set_job(rank.job);
  out->set_incarnation(rank.incarnation.value);
  out->set_rank(rank.rank.value);
  out->set_said_goodbye(rank.said_goodbye);
}

Result<TierWanted> FromProto(const pb::TierWanted& proto) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", proto.job()));
  HOLDFAST_ASSIGN_OR_RETURN(const Tier tier, TierFromNumber(proto.tier()));
  return TierWanted{proto.job(), FromProto(proto.version()), tier};
}

void ToProto(const TierWanted& wanted, pb::TierWanted* out) {
  out->set_job(wanted.job);
  ToProto(wanted.version, out->mutable_version());
  out->set_tier(static_cast<uint32_t>(wanted.tier));
}

Result<PrepareOrder> FromProto(const pb::PrepareShard& proto) {
  PrepareOrder order;
  HOLDFAST_RETURN_IF_ERROR(ReadFact(proto, order));
  HOLDFAST_RETURN_IF_ERROR(CheckRank(proto.rank(), proto.world()));
  if (proto.into() != 0) {
    HOLDFAST_ASSIGN_OR_RETURN(order.into, TierFromNumber(proto.into()));
  }
  if (order.into != Tier::kMemory && order.into != Tier::kDisk) {
    return Fail(InvalidArgumentError(
        fmt::format("shards are brought to memory or disk, not to {}", ToString(order.into))));
  }
  if (proto.has_group()) {
    HOLDFAST_ASSIGN_OR_RETURN(order.group, FromProto(proto.group()));
  }
  if (order.tier == Tier::kPeer && !HasRank(order.group, order.rank)) {
    return Fail(InvalidArgumentError(
        fmt::format("{} is to be decoded, but no group has it", ShardName(order.rank))));
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
  out->set_into(static_cast<uint32_t>(order.into));
  if (!order.group.members.empty()) ToProto(order.group, out->mutable_group());
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
