#include <fmt/format.h>

#include "coordinator/store/metadata.pb.h"
#include "coordinator/store/record_codec.h"
#include "coordinator/store/record_frame.h"

// Runs, incidents, the quarantine, drained nodes and suspect nodes.

namespace holdfast::coord {
namespace {
template <typename Field>
std::vector<std::string> Texts(const Field& field) {
  return {field.begin(), field.end()};
}

/// Stands for an absent number of an incident.
constexpr int64_t kAbsent = -1;
std::optional<int64_t> Present(int64_t stored) {
  return stored < 0 ? std::nullopt : std::optional(stored);
}
}  // namespace

std::string RunKey(const std::string& job) { return fmt::format("{}{}", kRunPrefix, job); }

std::string IncidentKey(uint64_t id) { return fmt::format("{}{:016x}", kIncidentPrefix, id); }

std::string QuarantineKey(const std::string& node) {
  return fmt::format("{}{}", kQuarantinePrefix, node);
}

std::string DrainKey(const std::string& node) { return fmt::format("{}{}", kDrainPrefix, node); }

std::string SuspectKey(const std::string& node) {
  return fmt::format("{}{}", kSuspectPrefix, node);
}

std::string EncodeRun(const RunRecord& record) {
  const RunSpec& spec = record.spec;
  metadata::Run payload;
  payload.mutable_command()->Assign(spec.command.begin(), spec.command.end());
  payload.mutable_environment()->Assign(spec.environment.begin(), spec.environment.end());
  payload.set_directory(spec.directory);
  payload.set_nodes(spec.nodes);
  payload.set_ranks_per_node(spec.ranks_per_node);
  payload.set_spares(spec.spares);
  payload.set_restarts_max(spec.restarts_max);
  payload.set_grace_ms(spec.grace_ms);
  payload.set_refill_versions(spec.refill_versions);
  payload.set_detect_action(static_cast<uint32_t>(spec.detect_action));
  payload.set_hang_after_ms(spec.hang_after_ms);
  payload.set_serial(record.serial);
  payload.set_phase(static_cast<uint32_t>(record.phase));
  payload.set_why(record.why);
  payload.set_launches(record.launches);
  payload.set_fruitless(record.fruitless);
  payload.set_started_wall_nanos(record.started_wall_nanos);
  payload.mutable_places()->Assign(record.nodes.begin(), record.nodes.end());
  payload.set_budget_used(record.budget_used);
  payload.set_budget_versions(record.budget_versions);
  payload.set_newest_step(record.newest_step);
  payload.set_saved(record.saved);
  payload.set_life(record.life.value);
  if (spec.uid) payload.set_uid(*spec.uid);
  return FrameRecord(RunKey(spec.job), payload);
}

Result<RunRecord> DecodeRun(std::string_view key, std::string_view value) {
  RunRecord record;
  std::string_view rest;
  HOLDFAST_RETURN_IF_ERROR(SplitKey(key, kRunPrefix, record.spec.job, rest));
  metadata::Run payload;
  HOLDFAST_RETURN_IF_ERROR(UnframeRecord(key, value, payload));
  const uint64_t world = uint64_t{payload.nodes()} * payload.ranks_per_node();
  const int places = payload.places_size();
  if (payload.phase() < 1 || payload.phase() > 7 || world == 0 || world > kWorldMax ||
      payload.ranks_per_node() > kWorkersMax || payload.command().empty() ||
      payload.detect_action() > 3 || payload.hang_after_ms() < 0 ||
      (places != 0 && static_cast<uint32_t>(places) != payload.nodes())) {
    return Fail(BadRecord(key, "invalid run"));
  }
  record.spec.command = Texts(payload.command());
  record.spec.environment = Texts(payload.environment());
  record.spec.directory = payload.directory();
  record.spec.nodes = payload.nodes();
  record.spec.ranks_per_node = payload.ranks_per_node();
  record.spec.spares = payload.spares();
  record.spec.restarts_max = payload.restarts_max();
  record.spec.grace_ms = payload.grace_ms();
  if (payload.has_refill_versions()) record.spec.refill_versions = payload.refill_versions();
  record.spec.detect_action = static_cast<DetectAction>(payload.detect_action());
  record.spec.hang_after_ms = payload.hang_after_ms();
  record.serial = payload.serial();
  record.phase = static_cast<RunPhase>(payload.phase());
  record.why = payload.why();
  record.launches = payload.launches();
  record.fruitless = payload.fruitless();
  record.started_wall_nanos = payload.started_wall_nanos();
  record.nodes = Texts(payload.places());
  record.budget_used = payload.budget_used();
  record.budget_versions = payload.budget_versions();
  record.newest_step = payload.newest_step();
  // Older records lack the field; assume that a run with a launch has saved something.
  record.saved = payload.has_saved() ? payload.saved() : payload.launches() != 0;
  record.life = LifeId{payload.life()};
  if (payload.has_uid()) record.spec.uid = payload.uid();
  return record;
}

std::string EncodeIncident(const IncidentRecord& record) {
  metadata::Incident payload;
  payload.set_job(record.job);
  payload.set_wall_nanos(record.wall_nanos);
  payload.set_kind(record.kind);
  payload.set_what(record.what);
  payload.mutable_evidence()->Assign(record.evidence.begin(), record.evidence.end());
  for (const Rank rank : record.ranks) payload.add_ranks(rank.value);
  payload.mutable_nodes()->Assign(record.nodes.begin(), record.nodes.end());
  payload.set_plan(record.plan);
  payload.set_detect_ms(record.detect_ms.value_or(kAbsent));
  payload.set_decide_ms(record.decide_ms.value_or(kAbsent));
  payload.set_stop_ms(record.stop_ms.value_or(kAbsent));
  payload.set_place_ms(record.place_ms.value_or(kAbsent));
  payload.set_restore_ms(record.restore_ms.value_or(kAbsent));
  payload.set_first_step_ms(record.first_step_ms.value_or(kAbsent));
  payload.set_lost_steps(record.lost_steps.value_or(kAbsent));
  const VersionId restored = record.restored.value_or(VersionId{});
  payload.set_restored_incarnation(restored.incarnation.value);
  payload.set_restored_step(restored.step.value);
  payload.set_state(static_cast<uint32_t>(record.state));
  return FrameRecord(IncidentKey(record.id), payload);
}

Result<IncidentRecord> DecodeIncident(std::string_view key, std::string_view value) {
  IncidentRecord record;
  if (key.substr(0, kIncidentPrefix.size()) != kIncidentPrefix) {
    return Fail(BadRecord(key, "not a valid key"));
  }
  HOLDFAST_ASSIGN_OR_RETURN(record.id, ParseHex(key, key.substr(kIncidentPrefix.size())));
  metadata::Incident payload;
  HOLDFAST_RETURN_IF_ERROR(UnframeRecord(key, value, payload));
  if (payload.state() < 1 || payload.state() > 5) {
    return Fail(BadRecord(key, "invalid state of an incident"));
  }
  record.job = payload.job();
  record.wall_nanos = payload.wall_nanos();
  record.kind = payload.kind();
  record.what = payload.what();
  record.evidence = Texts(payload.evidence());
  for (const uint32_t rank : payload.ranks()) record.ranks.push_back(Rank{rank});
  record.nodes = Texts(payload.nodes());
  record.plan = payload.plan();
  record.detect_ms = Present(payload.detect_ms());
  record.decide_ms = Present(payload.decide_ms());
  record.stop_ms = Present(payload.stop_ms());
  if (payload.has_place_ms()) record.place_ms = Present(payload.place_ms());
  record.restore_ms = Present(payload.restore_ms());
  record.first_step_ms = Present(payload.first_step_ms());
  record.lost_steps = Present(payload.lost_steps());
  if (payload.restored_incarnation() != 0) {
    record.restored = {Incarnation{payload.restored_incarnation()}, Step{payload.restored_step()}};
  }
  record.state = static_cast<IncidentState>(payload.state());
  return record;
}

std::string EncodeQuarantine(const QuarantineRecord& record) {
  metadata::Quarantine payload;
  payload.set_why(record.why);
  payload.set_wall_nanos(record.wall_nanos);
  return FrameRecord(QuarantineKey(record.node), payload);
}

Result<QuarantineRecord> DecodeQuarantine(std::string_view key, std::string_view value) {
  QuarantineRecord record;
  std::string_view rest;
  HOLDFAST_RETURN_IF_ERROR(SplitKey(key, kQuarantinePrefix, record.node, rest));
  metadata::Quarantine payload;
  HOLDFAST_RETURN_IF_ERROR(UnframeRecord(key, value, payload));
  record.why = payload.why();
  record.wall_nanos = payload.wall_nanos();
  return record;
}

std::string EncodeDrain(const DrainRecord& record) {
  metadata::Drain payload;
  payload.set_why(record.why);
  payload.set_wall_nanos(record.wall_nanos);
  payload.set_move_runs(record.move_runs);
  payload.set_removed(record.removed);
  return FrameRecord(DrainKey(record.node), payload);
}

Result<DrainRecord> DecodeDrain(std::string_view key, std::string_view value) {
  DrainRecord record;
  std::string_view rest;
  HOLDFAST_RETURN_IF_ERROR(SplitKey(key, kDrainPrefix, record.node, rest));
  metadata::Drain payload;
  HOLDFAST_RETURN_IF_ERROR(UnframeRecord(key, value, payload));
  record.why = payload.why();
  record.wall_nanos = payload.wall_nanos();
  record.move_runs = payload.move_runs();
  record.removed = payload.removed();
  return record;
}

std::string EncodeSuspect(const SuspectRecord& record) {
  metadata::Suspect payload;
  payload.set_why(record.why);
  payload.set_wall_nanos(record.wall_nanos);
  return FrameRecord(SuspectKey(record.node), payload);
}

Result<SuspectRecord> DecodeSuspect(std::string_view key, std::string_view value) {
  SuspectRecord record;
  std::string_view rest;
  HOLDFAST_RETURN_IF_ERROR(SplitKey(key, kSuspectPrefix, record.node, rest));
  metadata::Suspect payload;
  HOLDFAST_RETURN_IF_ERROR(UnframeRecord(key, value, payload));
  record.why = payload.why();
  record.wall_nanos = payload.wall_nanos();
  return record;
}

}  // namespace holdfast::coord
