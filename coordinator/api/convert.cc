#include "coordinator/api/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>
#include <set>

#include "base/endpoint.h"
#include "base/job_name.h"
#include "coordinator/api/tier_fields.h"
#include "coordinator/contract/limits.h"
#include "coordinator/contract/text.h"
#include "storage/erasure/coding_tables.h"

namespace holdfast::coord {
namespace {
constexpr int kLabelsMax = 64;
constexpr size_t kLabelBytesMax = 256;
// JoinRequest.start
constexpr uint32_t kStartNew = 1;
constexpr uint32_t kStartReturn = 2;

/// Accepts the rank of a trainer below `world`, or of a parity shard.
Status CheckRank(uint32_t rank, uint32_t world) {
  if (world != 0 && world <= kWorldMax && RankInWorld(Rank{rank}, world)) return Status::Ok();
  return InvalidArgumentError(fmt::format("{} in a world of {}", ShardName(Rank{rank}), world));
}

/// Checks and fills the fields that all messages about one shard have in common: StoredReplica,
/// FailedReplica, RemovedReplica and PrepareShard. `shard` is a ShardKey or a ShardIdentity.
template <typename Shard, typename Proto>
Status ReadShard(const Proto& proto, Shard& shard, Tier& tier) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", proto.job()));
  HOLDFAST_ASSIGN_OR_RETURN(shard.version, NamedVersion(proto.version()));
  HOLDFAST_ASSIGN_OR_RETURN(tier, TierFromNumber(proto.tier()));
  HOLDFAST_RETURN_IF_ERROR(CheckRank(proto.rank(), kWorldMax));
  shard.job = proto.job();
  shard.rank = Rank{proto.rank()};
  return Status::Ok();
}

template <typename Shard, typename Proto>
void WriteShard(const Shard& shard, Tier tier, Proto* out) {
  out->set_job(shard.job);
  ToProto(shard.version, out->mutable_version());
  out->set_rank(shard.rank.value);
  out->set_tier(static_cast<uint32_t>(tier));
}

/// Accepts the description of a group only if it lists each rank of its plan once, in order.
Result<std::shared_ptr<const ShardGroup>> ReadGroup(const pb::ShardGroup& proto,
                                                    const ShardIdentity& parity) {
  const auto bad = [&parity](const std::string& what) {
    return Fail(
        InvalidArgumentError(fmt::format("the group of {}: {}", ToString(parity.key()), what)));
  };
  if (!IsParity(parity.rank)) return bad("only parity shards have one");
  if (proto.plan().size() > kReportedPlanBytesMax) return bad("the plan is too long");
  auto plan = GroupPlan::FromJson(proto.plan());
  if (!plan) return bad(plan.error().message());
  std::set<uint32_t> ranks;
  for (const PlanMember& member : plan->members()) {
    for (const PlanRank& rank : member.ranks) ranks.insert(rank.rank.value);
  }
  const bool listed = std::ranges::equal(ranks, proto.shards(), {}, {}, &pb::ListedShard::rank) &&
                      std::ranges::all_of(proto.shards(), [](const pb::ListedShard& shard) {
                        return shard.image_bytes() <= kSlotBytesMax;
                      });
  if (!listed || ranks.empty() || *ranks.rbegin() >= parity.world) {
    return bad("it does not list the shards of its plan");
  }
  ShardGroup group{*std::move(plan), {}};
  for (const pb::ListedShard& shard : proto.shards()) {
    group.shards.push_back({Rank{shard.rank()}, shard.digest(), shard.image_bytes()});
  }
  return std::make_shared<const ShardGroup>(std::move(group));
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

void ToProto(const std::optional<VersionId>& version, pb::Version* out) {
  ToProto(version.value_or(VersionId{}), out);
}

std::optional<VersionId> AnyVersion(const pb::Version& version) {
  if (version.incarnation() == 0) return std::nullopt;
  return FromProto(version);
}

std::optional<int64_t> AnyNumber(int64_t number) {
  return number < 0 ? std::nullopt : std::optional(number);
}

Result<VersionId> NamedVersion(const pb::Version& version) {
  if (version.incarnation() == 0) {
    return Fail(InvalidArgumentError("a version needs an incarnation of 1 or more"));
  }
  if (version.incarnation() > kVersionNumberMax || version.step() > kVersionNumberMax) {
    return Fail(InvalidArgumentError(
        fmt::format("version {}-{}: incarnation and step are at most {}", version.incarnation(),
                    version.step(), kVersionNumberMax)));
  }
  return FromProto(version);
}

Status FromProto(const pb::Outcome& outcome) {
  ErrorCode code = ErrorFromNumber(outcome.code());
  return code == ErrorCode::kOk ? Status::Ok()
                                : Status(code, CutText(outcome.message(), kReportTextBytesMax));
}

void ToProto(const Status& status, pb::Outcome* out) {
  out->set_code(static_cast<uint32_t>(status.code()));
  out->set_message(status.message());
}

Result<Tier> TierFromNumber(uint32_t number) {
  if (IsTierNumber(number)) return static_cast<Tier>(number);
  std::string known;
  for (const TierTraits& traits : kTierTable) {
    known += fmt::format("{}{} is {}", known.empty() ? "" : ", ",
                         static_cast<uint32_t>(traits.tier), traits.name);
  }
  return Fail(InvalidArgumentError(fmt::format("unknown tier number {}; {}", number, known)));
}

Result<StoredReplica> FromProto(const pb::StoredReplica& proto) {
  StoredReplica report;
  HOLDFAST_RETURN_IF_ERROR(ReadShard(proto, report.identity, report.tier));
  HOLDFAST_RETURN_IF_ERROR(CheckRank(proto.rank(), proto.world()));
  if (proto.image_bytes() > kSlotBytesMax) {
    return Fail(InvalidArgumentError(fmt::format("{} has {} bytes; the limit is {}",
                                                 ShardName(Rank{proto.rank()}), proto.image_bytes(),
                                                 kSlotBytesMax)));
  }
  report.identity.world = proto.world();
  report.digest = proto.digest();
  report.image_bytes = proto.image_bytes();
  report.damage = CutText(proto.damage(), kReportTextBytesMax);
  if (static_cast<size_t>(proto.samples_size()) > kReplicaSamplesMax) {
    return Fail(
        InvalidArgumentError(fmt::format("a replica report with {} samples; the limit is {}",
                                         proto.samples_size(), kReplicaSamplesMax)));
  }
  for (const pb::ReplicaSample& sample : proto.samples()) {
    if (sample.tensor().size() > kReplicaSampleNameMax ||
        sample.bytes() > std::numeric_limits<uint64_t>::max() - sample.first()) {
      return Fail(
          InvalidArgumentError("a replica report has a sample whose name or length is too large"));
    }
    report.samples.push_back({sample.tensor(), sample.first(), sample.bytes(), sample.crc()});
  }
  report.life = LifeId{proto.life()};
  if (proto.has_group()) {
    HOLDFAST_ASSIGN_OR_RETURN(report.group, ReadGroup(proto.group(), report.identity));
  }
  return report;
}

void ToProto(const StoredReplica& report, pb::StoredReplica* out) {
  WriteShard(report.identity, report.tier, out);
  out->set_world(report.identity.world);
  out->set_digest(report.digest);
  out->set_image_bytes(report.image_bytes);
  out->set_damage(report.damage);
  for (const ReplicaSample& sample : report.samples) {
    pb::ReplicaSample* one = out->add_samples();
    one->set_tensor(sample.tensor);
    one->set_first(sample.first);
    one->set_bytes(sample.bytes);
    one->set_crc(sample.crc);
  }
  out->set_life(report.life.value);
  if (report.group == nullptr) return;
  out->mutable_group()->set_plan(report.group->plan.ToJson(/*as_of_now=*/false));
  for (const ListedShard& shard : report.group->shards) {
    pb::ListedShard* one = out->mutable_group()->add_shards();
    one->set_rank(shard.rank.value);
    one->set_digest(shard.digest);
    one->set_image_bytes(shard.image_bytes);
  }
}

Result<FailedReplica> FromProto(const pb::FailedReplica& proto) {
  FailedReplica failed;
  HOLDFAST_RETURN_IF_ERROR(ReadShard(proto, failed.key, failed.tier));
  failed.why = CutText(proto.why(), kReportTextBytesMax);
  return failed;
}

void ToProto(const FailedReplica& failed, pb::FailedReplica* out) {
  WriteShard(failed.key, failed.tier, out);
  out->set_why(failed.why);
}

Result<RemovedReplica> FromProto(const pb::RemovedReplica& proto) {
  RemovedReplica removed;
  HOLDFAST_RETURN_IF_ERROR(ReadShard(proto, removed.key, removed.tier));
  removed.damage = CutText(proto.damage(), kReportTextBytesMax);
  return removed;
}

void ToProto(const RemovedReplica& removed, pb::RemovedReplica* out) {
  WriteShard(removed.key, removed.tier, out);
  out->set_damage(removed.damage);
}

Prepared FromProto(const pb::Prepared& proto) {
  return {proto.request(), FromProto(proto.outcome())};
}

void ToProto(const Prepared& prepared, pb::Prepared* out) {
  out->set_request(prepared.request);
  ToProto(prepared.outcome, out->mutable_outcome());
}

namespace {
Result<PlanMember> ReadMember(const pb::PlanMember& proto) {
  PlanMember member;
  HOLDFAST_RETURN_IF_ERROR(ValidateName("node", proto.node()));
  if (!proto.address().empty()) {
    auto address = ParseEndpoint(proto.address());
    if (!address) return Fail(address.error().WithContext("address of member " + proto.node()));
  }
  if (proto.number() >= kWorldMax || proto.ranks().empty() ||
      static_cast<uint32_t>(proto.ranks_size()) > kMemberRanksMax) {
    return Fail(InvalidArgumentError(fmt::format(
        "member {} has number {} and {} ranks; a member has 1 to {} ranks and a number below {}",
        proto.node(), proto.number(), proto.ranks_size(), kMemberRanksMax, kWorldMax)));
  }
  member.node = proto.node();
  member.address = proto.address();
  member.number = proto.number();
  member.has_data = proto.has_data();
  member.has_parity = proto.has_parity();
  if (!proto.planned().empty()) HOLDFAST_RETURN_IF_ERROR(ValidateName("node", proto.planned()));
  member.planned = proto.planned();
  for (const pb::PlanRank& rank : proto.ranks()) {
    if (rank.rank() >= kWorldMax || rank.slot_bytes() == 0) {
      return Fail(InvalidArgumentError(fmt::format("member {}: rank {} with a slot of {} bytes",
                                                   proto.node(), rank.rank(), rank.slot_bytes())));
    }
    member.ranks.push_back({Rank{rank.rank()}, rank.slot_bytes()});
  }
  return member;
}

bool HasShard(const std::optional<GroupPlan>& group, Rank rank) {
  if (!group) return false;
  return IsParity(rank) ? group->PositionOfNumber(ParityNode(rank)).has_value()
                        : group->PositionOf(rank).has_value();
}
}  // namespace

Result<GroupPlan> FromProto(const pb::GroupPlan& proto) {
  if (static_cast<uint32_t>(proto.members_size()) > kCodeSegmentsMax) {
    return Fail(InvalidArgumentError(fmt::format("a parity group of {} nodes; a group has 2 to {}",
                                                 proto.members_size(), kCodeSegmentsMax)));
  }
  std::vector<PlanMember> members;
  for (const pb::PlanMember& member : proto.members()) {
    HOLDFAST_ASSIGN_OR_RETURN(PlanMember read, ReadMember(member));
    members.push_back(std::move(read));
  }
  return GroupPlan::Make(std::move(members), proto.parity());
}

void ToProto(const GroupPlan& group, pb::GroupPlan* out) {
  out->set_parity(group.layout().parity_count());
  for (const PlanMember& member : group.members()) {
    pb::PlanMember* wire = out->add_members();
    wire->set_node(member.node);
    wire->set_address(member.address);
    wire->set_number(member.number);
    wire->set_has_data(member.has_data);
    wire->set_has_parity(member.has_parity);
    wire->set_planned(member.planned);
    for (const PlanRank& rank : member.ranks) {
      pb::PlanRank* wire_rank = wire->add_ranks();
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

Result<VersionCommit> FromProto(const pb::VersionCommit& proto) {
  VersionCommit commit;
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", proto.job()));
  HOLDFAST_ASSIGN_OR_RETURN(commit.version, NamedVersion(proto.version()));
  if (proto.world() == 0 || proto.world() > kWorldMax || proto.digest() == 0) {
    return Fail(InvalidArgumentError(fmt::format("a commit of {} ranks with the digest {:016x}",
                                                 proto.world(), proto.digest())));
  }
  commit.job = proto.job();
  commit.life = LifeId{proto.life()};
  commit.world = proto.world();
  commit.digest = proto.digest();
  return commit;
}

void ToProto(const VersionCommit& commit, pb::VersionCommit* out) {
  out->set_job(commit.job);
  ToProto(commit.version, out->mutable_version());
  out->set_life(commit.life.value);
  out->set_world(commit.world);
  out->set_digest(commit.digest);
}

Result<JobState> FromProto(const pb::JobState& proto) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", proto.job()));
  JobState state;
  state.job = proto.job();
  state.incarnation = Incarnation{proto.incarnation()};
  for (const TierTraits& traits : kTierTable) {
    state.committed[traits.tier] = AnyVersion(CommittedAt(proto, traits.tier));
  }
  for (const pb::Version& version : proto.aborted()) state.aborted.push_back(FromProto(version));
  state.target_step[Tier::kDisk] = Step{proto.disk_target_step()};
  state.restore = AnyVersion(proto.restore());
  state.target_step[Tier::kPeer] = Step{proto.peer_target_step()};
  const uint32_t phase = std::min(proto.phase(), static_cast<uint32_t>(JobPhase::kFinished));
  state.phase = static_cast<JobPhase>(phase);
  state.release = proto.release();
  state.forget = proto.forget();
  if (proto.has_owner()) state.owner = proto.owner();
  state.flush = AnyVersion(proto.flush());
  for (const pb::VersionCommit& wire : proto.commits()) {
    HOLDFAST_ASSIGN_OR_RETURN(VersionCommit commit, FromProto(wire));
    state.commits.push_back(std::move(commit));
  }
  if (proto.has_group()) {
    HOLDFAST_ASSIGN_OR_RETURN(state.group, FromProto(proto.group()));
  }
  return state;
}

void ToProto(const JobState& state, pb::JobState* out) {
  out->set_job(state.job);
  out->set_incarnation(state.incarnation.value);
  for (const TierTraits& traits : kTierTable) {
    const std::optional<VersionId>& committed = state.committed[traits.tier];
    if (committed) ToProto(*committed, MutableCommittedAt(out, traits.tier));
  }
  for (VersionId version : state.aborted) ToProto(version, out->add_aborted());
  out->set_disk_target_step(state.target_step[Tier::kDisk].value);
  ToProto(state.restore, out->mutable_restore());
  out->set_peer_target_step(state.target_step[Tier::kPeer].value);
  if (state.group) ToProto(*state.group, out->mutable_group());
  out->set_phase(static_cast<uint32_t>(state.phase));
  out->set_release(state.release);
  out->set_forget(state.forget);
  if (state.owner) out->set_owner(*state.owner);
  ToProto(state.flush, out->mutable_flush());
  for (const VersionCommit& commit : state.commits) ToProto(commit, out->add_commits());
}

Result<LocalRank> FromProto(const pb::LocalRank& proto) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", proto.job()));
  if (proto.rank() >= kWorldMax) {
    return Fail(
        InvalidArgumentError(fmt::format("rank {} is not below {}", proto.rank(), kWorldMax)));
  }
  return LocalRank{proto.job(), Incarnation{proto.incarnation()}, Rank{proto.rank()},
                   proto.goodbye()};
}

void ToProto(const LocalRank& rank, pb::LocalRank* out) {
  out->set_job(rank.job);
  out->set_incarnation(rank.incarnation.value);
  out->set_rank(rank.rank.value);
  out->set_goodbye(rank.goodbye);
}

ArenaUse FromProto(const pb::ArenaUse& proto) {
  return {std::min(proto.bytes(), kArenaBytesMax),
          std::min(proto.reserved_bytes(), kArenaBytesMax)};
}

void ToProto(const ArenaUse& use, pb::ArenaUse* out) {
  out->set_bytes(use.bytes);
  out->set_reserved_bytes(use.reserved_bytes);
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

Result<PrepareShard> FromProto(const pb::PrepareShard& proto) {
  PrepareShard directive;
  HOLDFAST_RETURN_IF_ERROR(ReadShard(proto, directive.identity, directive.tier));
  HOLDFAST_RETURN_IF_ERROR(CheckRank(proto.rank(), proto.world()));
  if (proto.into() != 0) {
    HOLDFAST_ASSIGN_OR_RETURN(directive.into, TierFromNumber(proto.into()));
  }
  if (!HasReplicas(directive.into)) {
    return Fail(InvalidArgumentError(
        fmt::format("a shard cannot be prepared at tier {}", ToString(directive.into))));
  }
  if (proto.has_group()) {
    HOLDFAST_ASSIGN_OR_RETURN(directive.group, FromProto(proto.group()));
  }
  if (directive.tier == Tier::kPeer && !HasShard(directive.group, directive.identity.rank)) {
    return Fail(InvalidArgumentError(
        fmt::format("{} cannot be decoded: the group of the directive does not have it",
                    ShardName(directive.identity.rank))));
  }
  if (proto.request() != 0) directive.request = proto.request();
  directive.identity.world = proto.world();
  directive.source_node = proto.source_node();
  directive.source_peer_address = proto.source_peer_address();
  directive.digest = proto.digest();
  return directive;
}

void ToProto(const PrepareShard& directive, pb::PrepareShard* out) {
  WriteShard(directive.identity, directive.tier, out);
  out->set_request(directive.request.value_or(0));
  out->set_world(directive.identity.world);
  out->set_source_node(directive.source_node);
  out->set_source_peer_address(directive.source_peer_address);
  out->set_digest(directive.digest);
  out->set_into(static_cast<uint32_t>(directive.into));
  if (directive.group) ToProto(*directive.group, out->mutable_group());
}

Result<RemoveVersion> FromProto(const pb::RemoveVersion& proto) {
  RemoveVersion directive;
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", proto.job()));
  HOLDFAST_ASSIGN_OR_RETURN(directive.version, NamedVersion(proto.version()));
  HOLDFAST_ASSIGN_OR_RETURN(directive.tier, TierFromNumber(proto.tier()));
  directive.job = proto.job();
  return directive;
}

void ToProto(const RemoveVersion& directive, pb::RemoveVersion* out) {
  out->set_job(directive.job);
  ToProto(directive.version, out->mutable_version());
  out->set_tier(static_cast<uint32_t>(directive.tier));
}

Result<JoinRequest> FromProto(const pb::JoinRequest& request) {
  HOLDFAST_RETURN_IF_ERROR(ValidateJobName(request.job()));
  if (request.run_id().empty() || request.run_id().size() > kRunIdBytesMax) {
    return Fail(InvalidArgumentError(
        fmt::format("a run ID has 1 to {} bytes; this one has {}. All ranks of one start of a job "
                    "pass the same run ID, and each start a new one",
                    kRunIdBytesMax, request.run_id().size())));
  }
  if (request.slot_bytes() > kSlotBytesMax) {
    return Fail(InvalidArgumentError(
        fmt::format("slots of {} bytes; the limit is {}", request.slot_bytes(), kSlotBytesMax)));
  }
  if (request.start() > kStartReturn) {
    return Fail(InvalidArgumentError(
        fmt::format("unknown start {} of a process; use 0 to {}", request.start(), kStartReturn)));
  }
  JoinRequest join;
  join.job = request.job();
  join.run_id = request.run_id();
  join.rank = Rank{request.rank()};
  join.world = request.world();
  join.uid = request.uid();
  join.slot_bytes = request.slot_bytes();
  if (request.start() == kStartReturn && request.incarnation_before() != 0) {
    join.joined_before = Incarnation{request.incarnation_before()};
  }
  return join;
}

void ToProto(const JoinRequest& request, pb::JoinRequest* out) {
  out->set_job(request.job);
  out->set_run_id(request.run_id);
  out->set_rank(request.rank.value);
  out->set_world(request.world);
  out->set_uid(request.uid);
  out->set_slot_bytes(request.slot_bytes);
  out->set_start(request.joined_before ? kStartReturn : kStartNew);
  out->set_incarnation_before(request.joined_before.value_or(Incarnation{}).value);
}

Result<RestoreRequest> FromProto(const pb::DecideRestoreRequest& request) {
  HOLDFAST_RETURN_IF_ERROR(ValidateName("job", request.job()));
  RestoreRequest restore;
  restore.job = request.job();
  restore.incarnation = Incarnation{request.incarnation()};
  restore.rank = Rank{request.rank()};
  restore.wanted = AnyVersion(request.wanted());
  restore.reshard = request.reshard();
  return restore;
}

void ToProto(const RestoreRequest& request, pb::DecideRestoreRequest* out) {
  out->set_job(request.job);
  out->set_incarnation(request.incarnation.value);
  out->set_rank(request.rank.value);
  ToProto(request.wanted, out->mutable_wanted());
  out->set_reshard(request.reshard);
}

Result<VersionPlaces> FromProto(const pb::PlanRestoreReply& reply) {
  HOLDFAST_RETURN_IF_ERROR(FromProto(reply.outcome()));
  if (reply.world() == 0 || reply.world() > kWorldMax) {
    return Fail(
        InternalError(fmt::format("the coordinator named a version of {} ranks", reply.world())));
  }
  VersionPlaces places;
  places.shards.resize(reply.world());
  for (const pb::ShardSource& source : reply.sources()) {
    HOLDFAST_ASSIGN_OR_RETURN(const Tier tier, TierFromNumber(source.tier()));
    if (source.rank() >= reply.world()) {
      return Fail(InternalError(fmt::format(
          "the coordinator named rank {} of a version of {} ranks", source.rank(), reply.world())));
    }
    VersionPlaces::Shard& shard = places.shards[source.rank()];
    shard.digest = source.digest();
    shard.places.push_back({source.node(), source.peer_address(), tier});
  }
  for (const pb::GroupPlan& group : reply.groups()) {
    HOLDFAST_ASSIGN_OR_RETURN(GroupPlan plan, FromProto(group));
    places.groups.push_back(std::move(plan));
  }
  return places;
}

Result<RestoreDecision> FromProto(const pb::DecideRestoreReply& reply) {
  HOLDFAST_RETURN_IF_ERROR(FromProto(reply.outcome()));
  RestoreDecision decision;
  HOLDFAST_ASSIGN_OR_RETURN(decision.version, NamedVersion(reply.version()));
  HOLDFAST_ASSIGN_OR_RETURN(decision.tier, TierFromNumber(reply.tier()));
  decision.world = reply.world();
  return decision;
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
      return UnsupportedError(text + "; the service is older or a different one");
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return ResourceExhaustedError(std::move(text));
    case grpc::StatusCode::PERMISSION_DENIED:
      return PermissionDeniedError(std::move(text));
    default:
      return UnavailableError(text +
                              "; check that the service runs and that the address is correct");
  }
}

}  // namespace holdfast::coord
