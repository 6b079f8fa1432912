#include "coordinator/store/record_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "coordinator/store/metadata.pb.h"
#include "coordinator/store/record_frame.h"

namespace holdfast::coord {
namespace {

JobRecord SomeJob() {
  return {"gpt", 1000, Incarnation{3}, {"n1", "n2"}, {"n0"}, Step{17}, false, 0, 0, {}, 0};
}
LineageRecord SomeLineage() {
  return {"gpt", Incarnation{3}, "run-3", 4, Decision::kVersion, {Incarnation{2}, Step{90}}};
}
LineageRecord PlannedLineage() {
  LineageRecord record = SomeLineage();
  record.peers = {
      {1, {{"n1", "r1", {{Rank{0}, 4096}, {Rank{2}, kSlotBytesMax}}}, {"n2", "", {}}}},
      {2, {{"n3", "r 2/x", {{Rank{1}, 8192}}}, {"n4", "r3", {{Rank{3}, 4096}}}, {"n5", "r4", {}}}}};
  return record;
}
VersionRecord SomeVersion() {
  return {"gpt",
          {Incarnation{3}, Step{120}},
          2,
          Phase::kCommitted,
          TierBit(Tier::kMemory),
          TierBit(Tier::kDisk),
          true,
          1234567890123,
          1 << 20,
          {0xffffffffffffffff, 1}};
}

TEST(RecordCodecTest, EveryRecordSurvivesARoundTrip) {
  EXPECT_EQ(DecodeJob(JobKey("gpt"), EncodeJob(SomeJob())).value(), SomeJob());
  EXPECT_EQ(DecodeLineage(LineageKey("gpt", Incarnation{3}), EncodeLineage(SomeLineage())).value(),
            SomeLineage());
  const VersionRecord version = SomeVersion();
  EXPECT_EQ(DecodeVersion(VersionKey("gpt", version.version), EncodeVersion(version)).value(),
            version);
  EXPECT_EQ(
      DecodeLineage(LineageKey("gpt", Incarnation{3}), EncodeLineage(PlannedLineage())).value(),
      PlannedLineage());
  VersionRecord at_peer = SomeVersion();
  at_peer.tiers |= TierBit(Tier::kPeer);
  at_peer.parity_digests = {7, 0, 0xffffffffffffffff};
  at_peer.disputes = {{{"'w'", 8, 16}, {1}, {0, 2}}, {{"s", 0, 1}, {0, 1}, {}}};
  at_peer.commit_digest = 0x8000000000000001;
  at_peer.verification = Verification{1234567890123, true, 1, 2, 3, 4, 5};
  EXPECT_EQ(DecodeVersion(VersionKey("gpt", version.version), EncodeVersion(at_peer)).value(),
            at_peer);
  const SuspectRecord suspect{"n7", "Xid 79 on GPU 3", 1234567890123};
  EXPECT_EQ(DecodeSuspect(SuspectKey("n7"), EncodeSuspect(suspect)).value(), suspect);
  const DrainRecord drain{"n7", "new fan", 1234567890123, true, true};
  EXPECT_EQ(DecodeDrain(DrainKey("n7"), EncodeDrain(drain)).value(), drain);
  EXPECT_EQ(DecodeCluster(EncodeCluster("prod")).value(), "prod");
  EXPECT_EQ(DecodeEpoch(EncodeEpoch(Epoch{9})).value(), Epoch{9});
}

RunRecord SomeRun() {
  RunRecord run;
  run.spec.job = "gpt";
  run.spec.command = {"python", "train.py"};
  run.spec.directory = "/";
  run.spec.nodes = 2;
  run.spec.refill_versions = 0;
  run.spec.detect_action = DetectAction::kAlert;
  run.spec.hang_after_ms = 90'000;
  run.serial = 3;
  run.phase = RunPhase::kRunning;
  run.launches = 5;
  run.nodes = {"n1", "n2"};
  run.budget_used = 2;
  run.budget_versions = 7;
  run.newest_step = 1234;
  run.saved = true;
  return run;
}

TEST(RecordCodecTest, RunsKeepTheirBudgetAndPatience) {
  EXPECT_EQ(DecodeRun(RunKey("gpt"), EncodeRun(SomeRun())).value(), SomeRun());
  RunRecord not_saved = SomeRun();
  not_saved.saved = false;
  EXPECT_EQ(DecodeRun(RunKey("gpt"), EncodeRun(not_saved)).value(), not_saved);
}

TEST(RecordCodecTest, ARunOfAnOlderProgramIsReadWithTheDefaults) {
  metadata::Run old;
  old.add_command("train");
  old.set_directory("/");
  old.set_nodes(1);
  old.set_ranks_per_node(1);
  old.set_restarts_max(10);
  old.set_phase(3);
  old.set_launches(4);
  old.add_places("n1");
  auto run = DecodeRun(RunKey("gpt"), FrameRecord(RunKey("gpt"), old));
  ASSERT_TRUE(run.has_value()) << run.error().ToString();
  EXPECT_EQ(run->spec.refill_versions, RunSpec().refill_versions);
  EXPECT_EQ(run->spec.detect_action, DetectAction::kDefault);
  EXPECT_EQ(run->budget_used, 0U);
  EXPECT_TRUE(run->saved);
  old.set_detect_action(4);
  EXPECT_FALSE(DecodeRun(RunKey("gpt"), FrameRecord(RunKey("gpt"), old)).has_value());
}

TEST(RecordCodecTest, WhatAnIncidentHasNotReachedIsStoredAsBefore) {
  IncidentRecord incident;
  incident.id = 12;
  const std::string stored = EncodeIncident(incident);
  metadata::Incident payload;
  ASSERT_TRUE(UnframeRecord(IncidentKey(12), stored, payload).ok());
  for (const int64_t number :
       {payload.detect_ms(), payload.decide_ms(), payload.stop_ms(), payload.place_ms(),
        payload.restore_ms(), payload.first_step_ms(), payload.lost_steps()}) {
    EXPECT_EQ(number, -1);
  }
  EXPECT_TRUE(payload.has_place_ms());
  EXPECT_EQ(payload.restored_incarnation(), 0U);
  EXPECT_EQ(payload.restored_step(), 0U);
  EXPECT_EQ(DecodeIncident(IncidentKey(12), stored).value(), incident);
}

TEST(RecordCodecTest, IncidentsKeepTheirTimes) {
  IncidentRecord incident;
  incident.id = 12;
  incident.job = "gpt";
  incident.wall_nanos = 1234567890123;
  incident.kind = "node lost";
  incident.ranks = {Rank{3}};
  incident.nodes = {"n1"};
  incident.detect_ms = 1;
  incident.decide_ms = 2;
  incident.stop_ms = 3;
  incident.place_ms = 4;
  incident.restore_ms = 5;
  incident.first_step_ms = 6;
  incident.restored = VersionId{Incarnation{2}, Step{7}};
  incident.state = IncidentState::kRecovered;
  EXPECT_EQ(DecodeIncident(IncidentKey(12), EncodeIncident(incident)).value(), incident);
  metadata::Incident old;
  old.set_state(1);
  old.set_restore_ms(5);
  const auto read = DecodeIncident(IncidentKey(12), FrameRecord(IncidentKey(12), old));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->place_ms, std::nullopt) << "an older record has no such time";
  EXPECT_EQ(read->restore_ms, 5);
}

std::string FromHex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

// Records of the first coordinators, before parity groups existed.
constexpr char kOldLineage[] = "010a0572756e2d33100418022002285a1e104259";
constexpr char kOldVersion[] =
    "010802100118022008280130cb89ec8ff723388080404210ffffffffffffffff0100000000000000bab0f731";

TEST(RecordCodecTest, OlderRecordsAreRead) {
  EXPECT_EQ(DecodeLineage(LineageKey("gpt", Incarnation{3}), FromHex(kOldLineage)).value(),
            SomeLineage());
  const std::string key = VersionKey("gpt", SomeVersion().version);
  EXPECT_EQ(DecodeVersion(key, FromHex(kOldVersion)).value(), SomeVersion());
  // Records without new fields are still written in this form, so an older coordinator reads them.
  EXPECT_EQ(EncodeLineage(SomeLineage()), FromHex(kOldLineage));
  EXPECT_EQ(EncodeVersion(SomeVersion()), FromHex(kOldVersion));
}

TEST(RecordCodecTest, InvalidPlansAreRefused) {
  const std::vector<std::function<void(LineageRecord&)>> spoilers = {
      [](LineageRecord& l) { l.peers[0].members.resize(1); },
      [](LineageRecord& l) { l.peers[0].members.resize(33, l.peers[0].members[0]); },
      [](LineageRecord& l) { l.peers[0].parity = 0; },
      [](LineageRecord& l) { l.peers[1].parity = 3; },
      [](LineageRecord& l) {
        l.peers[1].members.resize(8, l.peers[1].members[0]);
        l.peers[1].parity = 5;
      },
      [](LineageRecord& l) { l.peers[0].members[0].node = "a/b"; },
      [](LineageRecord& l) { l.peers[0].members[0].ranks[0].rank = Rank{4}; },
      [](LineageRecord& l) { l.peers[0].members[0].ranks[1].slot_bytes = kSlotBytesMax + 1; },
  };
  for (size_t i = 0; i < spoilers.size(); ++i) {
    LineageRecord record = PlannedLineage();
    spoilers[i](record);
    auto decoded = DecodeLineage(LineageKey("gpt", Incarnation{3}), EncodeLineage(record));
    ASSERT_FALSE(decoded.has_value()) << i;
    EXPECT_EQ(decoded.error().code(), ErrorCode::kDataLoss) << i;
  }
}

TEST(RecordCodecTest, KeysSortAsVersionsDo) {
  EXPECT_EQ(VersionKey("gpt", {Incarnation{3}, Step{255}}),
            "version/gpt/0000000000000003-00000000000000ff");
  EXPECT_LT(VersionKey("gpt", {Incarnation{3}, Step{999}}),
            VersionKey("gpt", {Incarnation{3}, Step{1000}}));
  EXPECT_LT(VersionKey("gpt", {Incarnation{9}, Step{1}}),
            VersionKey("gpt", {Incarnation{10}, Step{0}}));
}

TEST(RecordCodecTest, EveryFlippedBitAndEveryTruncationIsDetected) {
  const std::string key = VersionKey("gpt", SomeVersion().version);
  const std::string value = EncodeVersion(SomeVersion());
  for (size_t bit = 0; bit < value.size() * 8; ++bit) {
    std::string flipped = value;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_FALSE(DecodeVersion(key, flipped).has_value()) << "bit " << bit;
  }
  for (size_t length = 0; length < value.size(); ++length) {
    ASSERT_FALSE(DecodeVersion(key, value.substr(0, length)).has_value()) << length;
  }
}

TEST(RecordCodecTest, AValueUnderAnotherKeyIsDetected) {
  auto moved =
      DecodeVersion(VersionKey("gpt", {Incarnation{3}, Step{121}}), EncodeVersion(SomeVersion()));
  ASSERT_FALSE(moved.has_value());
  EXPECT_EQ(moved.error().code(), ErrorCode::kDataLoss);
  EXPECT_FALSE(DecodeVersion("version/gpt/x", EncodeVersion(SomeVersion())).has_value());
  EXPECT_FALSE(DecodeVersion("version/../0-0", EncodeVersion(SomeVersion())).has_value());
}

}  // namespace
}  // namespace holdfast::coord
