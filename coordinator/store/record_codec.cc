#include "coordinator/store/record_codec.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>

#include "coordinator/store/metadata.pb.h"
#include "storage/format/checksum.h"

namespace holdfast::coord {
namespace {
constexpr char kFormat = 1;
constexpr size_t kFrameBytes = 5;  // format byte and CRC-32C

uint32_t ChecksumOf(std::string_view key, std::string_view body) {
  std::string bytes;
  bytes.reserve(key.size() + 1 + body.size());
  bytes.append(key).push_back('\0');
  bytes.append(body);
  return Crc32c(std::as_bytes(std::span(bytes)));
}

std::string Frame(std::string_view key, const google::protobuf::MessageLite& payload) {
  std::string value(1, kFormat);
  payload.AppendToString(&value);
  const uint32_t crc = ChecksumOf(key, value);
  for (int shift = 0; shift < 32; shift += 8) value.push_back(static_cast<char>(crc >> shift));
  return value;
}

Status Bad(std::string_view key, std::string_view why) {
  return DataLossError(fmt::format("metadata value of '{}': {}", key, why));
}

Status Unframe(std::string_view key, std::string_view value,
               google::protobuf::MessageLite& payload) {
  if (value.size() < kFrameBytes) return Bad(key, "too short");
  std::string_view body = value.substr(0, value.size() - 4);
  uint32_t crc = 0;
  for (int i = 0; i < 4; ++i) {
    crc |= static_cast<uint32_t>(static_cast<uint8_t>(value[body.size() + i])) << (8 * i);
  }
  if (crc != ChecksumOf(key, body)) return Bad(key, "its checksum does not match");
  if (body[0] != kFormat) {
    return UnsupportedError(fmt::format("metadata value of '{}': format {}, this build reads {}",
                                        key, static_cast<int>(body[0]), static_cast<int>(kFormat)));
  }
  if (!payload.ParseFromArray(body.data() + 1, static_cast<int>(body.size() - 1))) {
    return Bad(key, "not a valid record");
  }
  return Status::Ok();
}

Result<uint64_t> ParseHex(std::string_view key, std::string_view text) {
  uint64_t number = 0;
  auto parsed = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (text.size() != 16 || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    return Fail(Bad(key, "not a key of ours"));
  }
  return number;
}

/// Takes "<prefix><job>/<rest>" apart.
Status SplitKey(std::string_view key, std::string_view prefix, std::string& job,
                std::string_view& rest) {
  if (key.substr(0, prefix.size()) != prefix) return Bad(key, "not a key of ours");
  std::string_view tail = key.substr(prefix.size());
  const size_t slash = tail.find('/');
  job = tail.substr(0, slash);
  rest = slash == std::string_view::npos ? std::string_view() : tail.substr(slash + 1);
  return ValidateName("job", job);
}

void EncodeGroup(const PlannedGroup& group, metadata::PlannedGroup* out) {
  out->set_parity(group.parity);
  for (const PlannedMember& member : group.members) {
    metadata::PlannedMember* encoded = out->add_members();
    encoded->set_node(member.node);
    encoded->set_domain(member.domain);
    for (const PeerRank& rank : member.ranks) {
      metadata::PlannedRank* encoded_rank = encoded->add_ranks();
      encoded_rank->set_rank(rank.rank.value);
      encoded_rank->set_slot_bytes(rank.slot_bytes);
    }
  }
}

Result<PlannedGroup> DecodeGroup(std::string_view key, const metadata::PlannedGroup& payload,
                                 uint32_t world) {
  const uint32_t members = static_cast<uint32_t>(payload.members_size());
  if (members < 2 || members > kPeerGroupNodesMax || payload.parity() == 0 ||
      payload.parity() > kPeerGroupParityMax || payload.parity() >= members) {
    return Fail(Bad(key, "no such parity group"));
  }
  PlannedGroup group;
  group.parity = payload.parity();
  for (const metadata::PlannedMember& encoded : payload.members()) {
    if (!ValidateName("node", encoded.node()).ok()) return Fail(Bad(key, "no such node"));
    PlannedMember member{encoded.node(), encoded.domain(), {}};
    for (const metadata::PlannedRank& rank : encoded.ranks()) {
      if (rank.rank() >= world || rank.slot_bytes() > kSlotBytesMax) {
        return Fail(Bad(key, "a parity group has a rank that cannot be"));
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
  return Frame(JobKey(record.job), payload);
}

std::string EncodeLineage(const LineageRecord& record) {
  metadata::Lineage payload;
  payload.set_run_id(record.run_id);
  payload.set_world(record.world);
  payload.set_decision(static_cast<uint32_t>(record.decision));
  payload.set_restored_incarnation(record.restored.incarnation.value);
  payload.set_restored_step(record.restored.step.value);
  for (const PlannedGroup& group : record.peers) EncodeGroup(group, payload.add_peers());
  return Frame(LineageKey(record.job, record.incarnation), payload);
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
  return Frame(VersionKey(record.job, record.version), payload);
}

std::string EncodeCluster(const std::string& name) {
  metadata::Cluster payload;
  payload.set_name(name);
  return Frame(kClusterKey, payload);
}

std::string EncodeEpoch(Epoch epoch) {
  metadata::Epoch payload;
  payload.set_epoch(epoch.value);
  return Frame(kEpochKey, payload);
}

Result<JobRecord> DecodeJob(std::string_view key, std::string_view value) {
  JobRecord record;
  std::string_view rest;
  HOLDFAST_RETURN_IF_ERROR(SplitKey(key, kJobPrefix, record.job, rest));
  metadata::Job payload;
  HOLDFAST_RETURN_IF_ERROR(Unframe(key, value, payload));
  record.uid = payload.uid();
  record.incarnation = Incarnation{payload.incarnation()};
  record.nodes_now.assign(payload.nodes_now().begin(), payload.nodes_now().end());
  record.nodes_before.assign(payload.nodes_before().begin(), payload.nodes_before().end());
  record.abort_floor = Step{payload.abort_floor()};
  return record;
}

Result<LineageRecord> DecodeLineage(std::string_view key, std::string_view value) {
  LineageRecord record;
  std::string_view rest;
  HOLDFAST_RETURN_IF_ERROR(SplitKey(key, kLineagePrefix, record.job, rest));
  HOLDFAST_ASSIGN_OR_RETURN(record.incarnation.value, ParseHex(key, rest));
  metadata::Lineage payload;
  HOLDFAST_RETURN_IF_ERROR(Unframe(key, value, payload));
  if (payload.world() == 0 || payload.world() > kWorldMax) return Fail(Bad(key, "no such world"));
  if (payload.decision() > static_cast<uint32_t>(Decision::kVersion)) {
    return Fail(Bad(key, "no such decision"));
  }
  record.run_id = payload.run_id();
  record.world = payload.world();
  record.decision = static_cast<Decision>(payload.decision());
  record.restored = {Incarnation{payload.restored_incarnation()}, Step{payload.restored_step()}};
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
  if (rest.size() != 33 || rest[16] != '-') return Fail(Bad(key, "not a key of ours"));
  HOLDFAST_ASSIGN_OR_RETURN(record.version.incarnation.value, ParseHex(key, rest.substr(0, 16)));
  HOLDFAST_ASSIGN_OR_RETURN(record.version.step.value, ParseHex(key, rest.substr(17)));
  metadata::Version payload;
  HOLDFAST_RETURN_IF_ERROR(Unframe(key, value, payload));
  if (payload.world() == 0 || payload.world() > kWorldMax) return Fail(Bad(key, "no such world"));
  if (payload.phase() < 1 || payload.phase() > 3) return Fail(Bad(key, "no such phase"));
  if (payload.digests_size() != 0 &&
      static_cast<uint32_t>(payload.digests_size()) != payload.world()) {
    return Fail(Bad(key, "digests do not fit the world"));
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
  return record;
}

Result<std::string> DecodeCluster(std::string_view value) {
  metadata::Cluster payload;
  HOLDFAST_RETURN_IF_ERROR(Unframe(kClusterKey, value, payload));
  return payload.name();
}

Result<Epoch> DecodeEpoch(std::string_view value) {
  metadata::Epoch payload;
  HOLDFAST_RETURN_IF_ERROR(Unframe(kEpochKey, value, payload));
  return Epoch{payload.epoch()};
}

}  // namespace holdfast::coord
