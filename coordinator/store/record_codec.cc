#include "coordinator/store/record_codec.h"

#include <fmt/format.h>

#include "coordinator/store/metadata.pb.h"
#include "coordinator/store/record_frame.h"
#include "storage/erasure/coding_tables.h"

namespace holdfast::coord {
namespace {
void EncodeGroup(const PlannedGroup& group, metadata::PlannedGroup* out) {
  out->set_parity(group.parity);
  for (const PlannedMember& member : group.members) {
    metadata::PlannedMember* encoded = out->add_members();
    encoded->set_node(member.node);
    encoded->set_domain(member.domain);
    encoded->set_home(member.home);
    for (const PlanRank& rank : member.ranks) {
      metadata::PlannedRank* encoded_rank = encoded->add_ranks();
      encoded_rank->set_rank(rank.rank.value);
      encoded_rank->set_slot_bytes(rank.slot_bytes);
    }
  }
}

Result<PlannedGroup> DecodeGroup(std::string_view key, const metadata::PlannedGroup& payload,
                                 uint32_t world) {
  const uint32_t members = static_cast<uint32_t>(payload.members_size());
  if (members < 2 || members > kCodeSegmentsMax || payload.parity() == 0 ||
      payload.parity() > kCodeParityMax || payload.parity() >= members) {
    return Fail(BadRecord(key, "invalid size or parity of a parity group"));
  }
  PlannedGroup group;
  group.parity = payload.parity();
  for (const metadata::PlannedMember& encoded : payload.members()) {
    if (!ValidateName("node", encoded.node()).ok()) {
      return Fail(BadRecord(key, "invalid node name in a parity group"));
    }
    if (!encoded.home().empty() && !ValidateName("node", encoded.home()).ok()) {
      return Fail(BadRecord(key, "invalid node name in a parity group"));
    }
    PlannedMember member{encoded.node(), encoded.domain(), {}, encoded.home()};
    for (const metadata::PlannedRank& rank : encoded.ranks()) {
      if (rank.rank() >= world || rank.slot_bytes() > kSlotBytesMax) {
        return Fail(BadRecord(key, "invalid rank or slot in a parity group"));
      }
      member.ranks.push_back({Rank{rank.rank()}, rank.slot_bytes()});
    }
    group.members.push_back(std::move(member));
  }
  return group;
}
}  // namespace

std::string JobKey(const std::string& job) { return fmt::format("{}{}", kJobPrefix, job); }

std::string LineageKey(const std::string& job, Incarnation incarnation) {
  return fmt::format("{}{}/{:016x}", kLineagePrefix, job, incarnation.value);
}

std::string VersionKey(const std::string& job, VersionId version) {
  return fmt::format("{}{}/{:016x}-{:016x}", kVersionPrefix, job, version.incarnation.value,
                     version.step.value);
}

std::string EncodeJob(const JobRecord& record) {
  metadata::Job payload;
  payload.set_uid(record.uid);
  payload.set_incarnation(record.incarnation.value);
  for (const std::string& node : record.nodes_now) payload.add_nodes_now(node);
  for (const std::string& node : record.nodes_before) payload.add_nodes_before(node);
  payload.set_abort_floor(record.abort_floor.value);
  payload.set_finished(record.finished);
  payload.set_keep_last(record.keep_last);
  payload.set_keep_every(record.keep_every);
  payload.set_forgotten_upto(record.forgotten_upto.value);
  payload.set_ended_wall_nanos(record.ended_wall_nanos);
  return FrameRecord(JobKey(record.job), payload);
}

std::string EncodeLineage(const LineageRecord& record) {
  metadata::Lineage payload;
  payload.set_run_id(record.run_id);
  payload.set_world(record.world);
  payload.set_decision(static_cast<uint32_t>(record.decision));
  payload.set_restored_incarnation(record.restored.incarnation.value);
  payload.set_restored_step(record.restored.step.value);
  payload.set_life(record.life.value);
  for (const PlannedGroup& group : record.peers) EncodeGroup(group, payload.add_peers());
  return FrameRecord(LineageKey(record.job, record.incarnation), payload);
}

std::string EncodeVersion(const VersionRecord& record) {
  metadata::Version payload;
  payload.set_world(record.world);
  payload.set_phase(static_cast<uint32_t>(record.phase));
  payload.set_tiers(record.tiers);
  payload.set_failed_tiers(record.failed_tiers);
  payload.set_pinned(record.pinned);
  payload.set_wall_nanos(record.wall_nanos);
  payload.set_bytes(record.bytes);
  for (uint64_t digest : record.digests) payload.add_digests(digest);
  for (uint64_t digest : record.parity_digests) payload.add_parity_digests(digest);
  for (const Dispute& dispute : record.disputes) {
    metadata::Dispute* one = payload.add_disputes();
    one->set_tensor(dispute.bytes.tensor);
    one->set_first(dispute.bytes.first);
    one->set_last(dispute.bytes.last);
    one->mutable_odd()->Assign(dispute.odd.begin(), dispute.odd.end());
    one->mutable_others()->Assign(dispute.others.begin(), dispute.others.end());
  }
  payload.set_adopted_from(record.adopted_from.value);
  if (record.verification) {
    metadata::Verification* verification = payload.mutable_verification();
    verification->set_wall_nanos(record.verification->wall_nanos);
    verification->set_deep(record.verification->deep);
    verification->set_ok(record.verification->ok);
    verification->set_damaged(record.verification->damaged);
    verification->set_missing(record.verification->missing);
    verification->set_unchecked(record.verification->unchecked);
    verification->set_left_out(record.verification->left_out);
  }
  payload.set_commit_digest(record.commit_digest);
  return FrameRecord(VersionKey(record.job, record.version), payload);
}

std::string EncodeCluster(const std::string& name) {
  metadata::Cluster payload;
  payload.set_name(name);
  return FrameRecord(kClusterKey, payload);
}

std::string EncodeLife(LifeId life) {
  metadata::Life payload;
  payload.set_life(life.value);
  return FrameRecord(kLifeKey, payload);
}

std::string EncodeEpoch(Epoch epoch) {
  metadata::Epoch payload;
  payload.set_epoch(epoch.value);
  return FrameRecord(kEpochKey, payload);
}

Result<JobRecord> DecodeJob(std::string_view key, std::string_view value) {
  JobRecord record;
  std::string_view rest;
  HOLDFAST_RETURN_IF_ERROR(SplitKey(key, kJobPrefix, record.job, rest));
  metadata::Job payload;
  HOLDFAST_RETURN_IF_ERROR(UnframeRecord(key, value, payload));
  record.uid = payload.uid();
  record.incarnation = Incarnation{payload.incarnation()};
  record.nodes_now.assign(payload.nodes_now().begin(), payload.nodes_now().end());
  record.nodes_before.assign(payload.nodes_before().begin(), payload.nodes_before().end());
  record.abort_floor = Step{payload.abort_floor()};
  record.finished = payload.finished();
  record.keep_last = payload.keep_last();
  record.keep_every = payload.keep_every();
  record.forgotten_upto = Incarnation{payload.forgotten_upto()};
  record.ended_wall_nanos = payload.ended_wall_nanos();
  return record;
}

Result<LineageRecord> DecodeLineage(std::string_view key, std::string_view value) {
  LineageRecord record;
  std::string_view rest;
  HOLDFAST_RETURN_IF_ERROR(SplitKey(key, kLineagePrefix, record.job, rest));
  HOLDFAST_ASSIGN_OR_RETURN(record.incarnation.value, ParseHex(key, rest));
  metadata::Lineage payload;
  HOLDFAST_RETURN_IF_ERROR(UnframeRecord(key, value, payload));
  if (payload.world() == 0 || payload.world() > kWorldMax)
    return Fail(BadRecord(key, "invalid world"));
  if (payload.decision() > static_cast<uint32_t>(Decision::kVersion)) {
    return Fail(BadRecord(key, "invalid restore decision"));
  }
  record.run_id = payload.run_id();
  record.world = payload.world();
  record.decision = static_cast<Decision>(payload.decision());
  record.restored = {Incarnation{payload.restored_incarnation()}, Step{payload.restored_step()}};
  record.life = LifeId{payload.life()};
  for (const metadata::PlannedGroup& encoded : payload.peers()) {
    HOLDFAST_ASSIGN_OR_RETURN(PlannedGroup group, DecodeGroup(key, encoded, record.world));
    record.peers.push_back(std::move(group));
  }
  return record;
}

Result<VersionRecord> DecodeVersion(std::string_view key, std::string_view value) {
  VersionRecord record;
  std::string_view rest;
  HOLDFAST_RETURN_IF_ERROR(SplitKey(key, kVersionPrefix, record.job, rest));
  if (rest.size() != 33 || rest[16] != '-') return Fail(BadRecord(key, "not a valid key"));
  HOLDFAST_ASSIGN_OR_RETURN(record.version.incarnation.value, ParseHex(key, rest.substr(0, 16)));
  HOLDFAST_ASSIGN_OR_RETURN(record.version.step.value, ParseHex(key, rest.substr(17)));
  metadata::Version payload;
  HOLDFAST_RETURN_IF_ERROR(UnframeRecord(key, value, payload));
  if (payload.world() == 0 || payload.world() > kWorldMax)
    return Fail(BadRecord(key, "invalid world"));
  if (payload.phase() < 1 || payload.phase() > 3) return Fail(BadRecord(key, "invalid phase"));
  if (payload.digests_size() != 0 &&
      static_cast<uint32_t>(payload.digests_size()) != payload.world()) {
    return Fail(BadRecord(key, "the number of digests differs from the world"));
  }
  record.world = payload.world();
  record.phase = static_cast<Phase>(payload.phase());
  record.tiers = payload.tiers();
  record.failed_tiers = payload.failed_tiers();
  record.pinned = payload.pinned();
  record.wall_nanos = payload.wall_nanos();
  record.bytes = payload.bytes();
  record.digests.assign(payload.digests().begin(), payload.digests().end());
  record.parity_digests.assign(payload.parity_digests().begin(), payload.parity_digests().end());
  for (const metadata::Dispute& one : payload.disputes()) {
    record.disputes.push_back({{one.tensor(), one.first(), one.last()},
                               {one.odd().begin(), one.odd().end()},
                               {one.others().begin(), one.others().end()}});
  }
  record.adopted_from = LifeId{payload.adopted_from()};
  record.commit_digest = payload.commit_digest();
  if (payload.has_verification()) {
    const metadata::Verification& one = payload.verification();
    record.verification =
        Verification{one.wall_nanos(), one.deep(),      one.ok(),      one.damaged(),
                     one.missing(),    one.unchecked(), one.left_out()};
  }
  return record;
}

Result<std::string> DecodeCluster(std::string_view value) {
  metadata::Cluster payload;
  HOLDFAST_RETURN_IF_ERROR(UnframeRecord(kClusterKey, value, payload));
  return payload.name();
}

Result<LifeId> DecodeLife(std::string_view value) {
  metadata::Life payload;
  HOLDFAST_RETURN_IF_ERROR(UnframeRecord(kLifeKey, value, payload));
  if (payload.life() == 0) return Fail(BadRecord(kLifeKey, "the life is 0"));
  return LifeId{payload.life()};
}

Result<Epoch> DecodeEpoch(std::string_view value) {
  metadata::Epoch payload;
  HOLDFAST_RETURN_IF_ERROR(UnframeRecord(kEpochKey, value, payload));
  return Epoch{payload.epoch()};
}

}  // namespace holdfast::coord
