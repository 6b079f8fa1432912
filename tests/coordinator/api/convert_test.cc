#include "coordinator/api/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "coordinator/api/run_convert.h"
#include "coordinator/contract/limits.h"
#include "coordinator/contract/text.h"
#include "storage/erasure/coding_tables.h"

namespace holdfast::coord {
namespace {

pb::StoredReplica GoodReplica() {
  pb::StoredReplica report;
  report.set_job("gpt");
  report.mutable_version()->set_incarnation(3);
  report.mutable_version()->set_step(120);
  report.set_rank(2);
  report.set_world(4);
  report.set_tier(3);
  report.set_digest(0xfedcba9876543210);
  report.set_image_bytes(1 << 30);
  for (uint32_t crc : {7U, 8U}) {
    pb::ReplicaSample* sample = report.add_samples();
    sample->set_tensor("'w'");
    sample->set_first(4096);
    sample->set_bytes(crc);
    sample->set_crc(crc);
  }
  return report;
}

TEST(ConvertTest, AStoredReplicaSurvivesARoundTrip) {
  auto report = FromProto(GoodReplica());
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->identity.version, (VersionId{Incarnation{3}, Step{120}}));
  EXPECT_EQ(report->tier, Tier::kDisk);
  EXPECT_THAT(report->samples, ::testing::ElementsAre(ReplicaSample{"'w'", 4096, 7, 7},
                                                      ReplicaSample{"'w'", 4096, 8, 8}));
  pb::StoredReplica again;
  ToProto(*report, &again);
  EXPECT_EQ(again.SerializeAsString(), GoodReplica().SerializeAsString());
}

/// The parity shard of a group of two nodes with one rank each.
StoredReplica ReplicaWithGroup() {
  std::vector<PlanMember> members(2);
  std::vector<ListedShard> shards;
  for (uint32_t i = 0; i < 2; ++i) {
    members[i].node = "n" + std::to_string(i);
    members[i].number = i;
    members[i].ranks = {{Rank{i}, 4096}};
    shards.push_back({Rank{i}, 77 + i, 4096});
  }
  const ShardIdentity identity{"gpt", {Incarnation{3}, Step{120}}, ParityRank(1), 2};
  StoredReplica report{identity, Tier::kDisk, 9, 8192};
  report.group = std::make_shared<const ShardGroup>(
      ShardGroup{GroupPlan::Make(std::move(members), 1).value(), std::move(shards)});
  return report;
}

TEST(ConvertTest, TheGroupOfAParityShardSurvivesARoundTrip) {
  pb::StoredReplica wire;
  ToProto(ReplicaWithGroup(), &wire);
  const auto report = FromProto(wire);
  ASSERT_TRUE(report.has_value()) << report.error().ToString();
  ASSERT_NE(report->group, nullptr);
  EXPECT_EQ(*report->group, *ReplicaWithGroup().group);
}

TEST(ConvertTest, AGroupThatContradictsItsPlanIsRefused) {
  const std::vector<std::function<void(pb::StoredReplica&)>> cases = {
      [](pb::StoredReplica& one) { one.set_rank(1); },
      [](pb::StoredReplica& one) { one.set_world(1); },
      [](pb::StoredReplica& one) { one.mutable_group()->set_plan("{}"); },
      [](pb::StoredReplica& one) {
        one.mutable_group()->set_plan(std::string(kReportedPlanBytesMax + 1, ' '));
      },
      [](pb::StoredReplica& one) { one.mutable_group()->mutable_shards()->RemoveLast(); },
      [](pb::StoredReplica& one) { one.mutable_group()->add_shards()->set_rank(0); },
      [](pb::StoredReplica& one) { one.mutable_group()->mutable_shards(0)->set_rank(1); },
      [](pb::StoredReplica& one) {
        one.mutable_group()->mutable_shards(0)->set_image_bytes(kSlotBytesMax + 1);
      },
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    pb::StoredReplica wire;
    ToProto(ReplicaWithGroup(), &wire);
    cases[i](wire);
    const auto report = FromProto(wire);
    ASSERT_FALSE(report.has_value()) << i;
    EXPECT_EQ(report.error().code(), ErrorCode::kInvalidArgument) << i;
  }
}

TEST(ConvertTest, TextsAreCutBetweenCharacters) {
  EXPECT_EQ(CutText("abc", 3), "abc");
  EXPECT_EQ(CutText("abcd", 3), "abc");
  EXPECT_EQ(CutText("ab\u00fc", 3), "ab");
  EXPECT_EQ(CutText("\u20ac\u20ac", 4), "\u20ac");
  EXPECT_EQ(CutText("\u20ac", 0), "");
  pb::StoredReplica proto = GoodReplica();
  proto.set_damage(std::string(kReportTextBytesMax - 1, 'x') + "\u00fc");
  EXPECT_EQ(FromProto(proto)->damage.size(), kReportTextBytesMax - 1);
}

pb::WorkerState GoodWorker() {
  pb::WorkerState worker;
  worker.set_job("gpt");
  worker.set_run_id("run-1.1");
  worker.set_rank(3);
  worker.set_phase(2);
  worker.set_pid(77);
  worker.set_signal(9);
  worker.set_ended_ago_ms(5);
  return worker;
}

TEST(ConvertTest, EveryNumberOfAWorkerIsBounded) {
  ASSERT_TRUE(FromProto(GoodWorker()).has_value());
  std::vector<std::pair<std::string, std::function<void(pb::WorkerState&)>>> cases = {
      {"rank", [](auto& w) { w.set_rank(kWorldMax); }},
      {"phase 0", [](auto& w) { w.set_phase(0); }},
      {"phase 4", [](auto& w) { w.set_phase(4); }},
      {"pid", [](auto& w) { w.set_pid(0x80000000U); }},
      {"signal", [](auto& w) { w.set_signal(65); }},
      {"no signal", [](auto& w) { w.set_signal(-1); }},
      {"no run", [](auto& w) { w.clear_run_id(); }},
      {"a long run", [](auto& w) { w.set_run_id(std::string(129, 'r')); }},
  };
  for (auto& [name, spoil] : cases) {
    pb::WorkerState proto = GoodWorker();
    spoil(proto);
    EXPECT_FALSE(FromProto(proto).has_value()) << name;
  }
  pb::WorkerState old = GoodWorker();
  old.set_ended_ago_ms(INT64_MAX);
  EXPECT_EQ(FromProto(old)->ended_ago_ms, 86'400'000);
  old.set_ended_ago_ms(INT64_MIN);
  EXPECT_EQ(FromProto(old)->ended_ago_ms, 0);
}

TEST(ConvertTest, ARunMayNotUseAReservedDirectoryName) {
  pb::RunSpec spec;
  spec.set_job("gpt");
  spec.add_command("true");
  spec.set_directory("/");
  spec.set_nodes(1);
  spec.set_ranks_per_node(1);
  ASSERT_TRUE(FromProto(spec).has_value());
  for (const char* name : {"quarantine", "HOLDFAST", "HOLDFAST.agent", ".probe-0123456789abcdef"}) {
    spec.set_job(name);
    auto refused = FromProto(spec);
    ASSERT_FALSE(refused.has_value()) << name;
    EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("choose another name"));
  }
}

TEST(ConvertTest, InvalidReplicaReportsAreRefused) {
  std::vector<std::pair<std::string, std::function<void(pb::StoredReplica&)>>> cases = {
      {"path traversal", [](auto& h) { h.set_job(".."); }},
      {"slash", [](auto& h) { h.set_job("a/b"); }},
      {"no job", [](auto& h) { h.clear_job(); }},
      {"no version", [](auto& h) { h.clear_version(); }},
      {"tier 0", [](auto& h) { h.set_tier(0); }},
      {"tier 9", [](auto& h) { h.set_tier(9); }},
      {"rank = world", [](auto& h) { h.set_rank(4); }},
      {"world 0", [](auto& h) { h.set_world(0); }},
      {"huge world", [](auto& h) { h.set_world(kWorldMax + 1); }},
      {"no such step", [](auto& h) { h.mutable_version()->set_step(~uint64_t{0}); }},
      {"no such incarnation", [](auto& h) { h.mutable_version()->set_incarnation(1ULL << 63); }},
      {"more bytes than a slot", [](auto& h) { h.set_image_bytes(kSlotBytesMax + 1); }},
      {"a long name", [](auto& h) { h.set_job(std::string(129, 'a')); }},
      {"a sample beyond all bytes",
       [](auto& h) { h.mutable_samples(1)->set_bytes(~uint64_t{0} - 4095); }},
      {"a sample with a long name",
       [](auto& h) {
         h.mutable_samples(1)->set_tensor(std::string(kReplicaSampleNameMax + 1, 'a'));
       }},
      {"too many samples",
       [](auto& h) {
         while (h.samples_size() <= static_cast<int>(kReplicaSamplesMax)) h.add_samples();
       }},
      {"parity beyond", [](auto& h) { h.set_rank(ParityRank(kWorldMax).value); }},
      {"parity of the largest number", [](auto& h) { h.set_rank(0xffffffff); }},
      {"parity of no world",
       [](auto& h) {
         h.set_rank(ParityRank(0).value);
         h.set_world(0);
       }},
  };
  for (auto& [name, spoil] : cases) {
    pb::StoredReplica proto = GoodReplica();
    spoil(proto);
    auto report = FromProto(proto);
    ASSERT_FALSE(report.has_value()) << name;
    EXPECT_EQ(report.error().code(), ErrorCode::kInvalidArgument) << name;
    EXPECT_FALSE(report.error().message().empty());
  }
}

TEST(ConvertTest, ParityShardsAreReportedLikeOtherShards) {
  pb::StoredReplica wire = GoodReplica();
  wire.set_rank(ParityRank(kWorldMax - 1).value);
  auto report = FromProto(wire);
  ASSERT_TRUE(report.has_value()) << report.error().ToString();
  EXPECT_EQ(report->identity.rank, ParityRank(kWorldMax - 1));

  EXPECT_EQ(report->damage, "");
  report->damage = "chunk 3";
  pb::StoredReplica damaged;
  ToProto(*report, &damaged);
  EXPECT_EQ(FromProto(damaged)->damage, "chunk 3");

  pb::FailedReplica failed;
  const VersionId version{Incarnation{1}, Step{2}};
  ToProto(FailedReplica{"gpt", version, ParityRank(9), Tier::kPeer, "slow"}, &failed);
  EXPECT_EQ(FromProto(failed)->key.rank, ParityRank(9));
  pb::RemovedReplica removed;
  ToProto(RemovedReplica{"gpt", version, ParityRank(9), Tier::kMemory, "chunk 3"}, &removed);
  EXPECT_EQ(FromProto(removed)->key.rank, ParityRank(9));
  EXPECT_EQ(FromProto(removed)->damage, "chunk 3");
  removed.set_rank(ParityRank(kWorldMax).value);
  EXPECT_FALSE(FromProto(removed).has_value());
}

GroupPlan GoodGroup() {
  return GroupPlan::Make({{"n1", "unix:/n1", 4, {{Rank{0}, 4096}, {Rank{3}, kSlotBytesMax}}, true},
                          {"n2", "", 5, {{Rank{1}, 8192}}, false},
                          {"n3", "127.0.0.1:7002", 6, {{Rank{2}, 4096}}, true}},
                         2)
      .value();
}

TEST(ConvertTest, GroupsSurviveARoundTrip) {
  pb::GroupPlan wire;
  ToProto(GoodGroup(), &wire);
  EXPECT_EQ(FromProto(wire).value(), GoodGroup());
  std::vector<PlanMember> members;
  for (uint32_t i = 0; i < kCodeSegmentsMax; ++i) {
    members.push_back({"n", "", i, {{Rank{i}, 4096}}, false});
  }
  const GroupPlan largest = GroupPlan::Make(members, kCodeParityMax).value();
  wire.Clear();
  ToProto(largest, &wire);
  EXPECT_EQ(FromProto(wire).value(), largest);
}

TEST(ConvertTest, InvalidGroupsAreRefused) {
  std::vector<std::pair<std::string, std::function<void(pb::GroupPlan&)>>> cases = {
      {"no members", [](auto& g) { g.clear_members(); }},
      {"one member", [](auto& g) { g.mutable_members()->DeleteSubrange(1, 2); }},
      {"too many members",
       [](auto& g) {
         while (g.members_size() <= 32) *g.add_members() = g.members(0);
       }},
      {"no parity", [](auto& g) { g.set_parity(0); }},
      {"all parity", [](auto& g) { g.set_parity(3); }},
      {"too much parity",
       [](auto& g) {
         for (int i = 0; i < 9; ++i) *g.add_members() = g.members(0);
         g.set_parity(5);
       }},
      {"path in a name", [](auto& g) { g.mutable_members(0)->set_node("../n"); }},
      {"address", [](auto& g) { g.mutable_members(0)->set_address("nowhere"); }},
      {"number", [](auto& g) { g.mutable_members(0)->set_number(kWorldMax); }},
      {"no ranks", [](auto& g) { g.mutable_members(0)->clear_ranks(); }},
      {"too many ranks",
       [](auto& g) {
         for (uint32_t i = 4; i < 2000; ++i) {
           auto* rank = g.mutable_members(0)->add_ranks();
           rank->set_rank(i);
           rank->set_slot_bytes(4096);
         }
       }},
      {"ranks that do not ascend",
       [](auto& g) { g.mutable_members(0)->mutable_ranks(1)->set_rank(0); }},
      {"parity as data",
       [](auto& g) { g.mutable_members(0)->mutable_ranks(1)->set_rank(ParityRank(0).value); }},
      {"no room", [](auto& g) { g.mutable_members(0)->mutable_ranks(0)->set_slot_bytes(0); }},
      {"odd room", [](auto& g) { g.mutable_members(0)->mutable_ranks(0)->set_slot_bytes(4097); }},
      {"too much room",
       [](auto& g) {
         g.mutable_members(0)->mutable_ranks(0)->set_slot_bytes(kSlotBytesMax + 4096);
       }},
  };
  for (auto& [name, spoil] : cases) {
    pb::JobState state;
    ToProto(JobState{.job = "gpt", .incarnation = Incarnation{1}, .group = GoodGroup()}, &state);
    ASSERT_TRUE(FromProto(state).has_value());
    spoil(*state.mutable_group());
    auto refused = FromProto(state);
    ASSERT_FALSE(refused.has_value()) << name;
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument) << name;
  }
}

TEST(ConvertTest, ADecodeNeedsTheGroupOfItsRank) {
  PrepareShard directive{
      7,  "gpt",      {Incarnation{1}, Step{2}}, Rank{3}, 4, Tier::kPeer, Tier::kDisk, "", "",
      99, GoodGroup()};
  pb::PrepareShard good;
  ToProto(directive, &good);
  EXPECT_EQ(FromProto(good).value(), directive);
  pb::PrepareShard bad = good;
  bad.clear_group();
  EXPECT_EQ(FromProto(bad).error().code(), ErrorCode::kInvalidArgument);
  bad = good;
  bad.set_world(8);
  bad.set_rank(7);
  EXPECT_EQ(FromProto(bad).error().code(), ErrorCode::kInvalidArgument);
  bad = good;
  bad.set_rank(ParityRank(77).value);
  EXPECT_EQ(FromProto(bad).error().code(), ErrorCode::kInvalidArgument) << "no such member";
  bad = good;
  bad.set_into(static_cast<uint32_t>(Tier::kPeer));
  EXPECT_EQ(FromProto(bad).error().code(), ErrorCode::kInvalidArgument);
  directive.identity.rank = ParityRank(directive.group->members()[1].number);
  pb::PrepareShard parity;
  ToProto(directive, &parity);
  EXPECT_EQ(FromProto(parity).value(), directive) << "a parity shard is prepared like any other";
}

TEST(ConvertTest, LabelsAreBounded) {
  google::protobuf::Map<std::string, std::string> wire;
  wire["rack"] = "row 3/7";
  wire["switch"] = "";
  EXPECT_EQ(FromProto(wire).value(), (Labels{{"rack", "row 3/7"}, {"switch", ""}}));
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "x"}, {"a b", "x"}, {"rack", "a\nb"}, {"rack", std::string(257, 'x')}};
  for (const auto& [name, value] : bad) {
    google::protobuf::Map<std::string, std::string> spoiled;
    spoiled[name] = value;
    EXPECT_EQ(FromProto(spoiled).error().code(), ErrorCode::kInvalidArgument) << name;
  }
  for (int i = 0; i < 65; ++i) wire["l" + std::to_string(i)] = "x";
  EXPECT_EQ(FromProto(wire).error().code(), ErrorCode::kInvalidArgument);
}

TEST(ConvertTest, TheSizeOfAnArenaIsBounded) {
  pb::ArenaUse wire;
  ToProto(ArenaUse{.bytes = 64, .reserved_bytes = 48}, &wire);
  EXPECT_EQ(FromProto(wire), (ArenaUse{.bytes = 64, .reserved_bytes = 48}));
  wire.set_bytes(~uint64_t{0});
  wire.set_reserved_bytes(kArenaBytesMax + 1);
  EXPECT_EQ(FromProto(wire),
            (ArenaUse{.bytes = uint64_t{1} << 50, .reserved_bytes = uint64_t{1} << 50}));
}

TEST(ConvertTest, DirectivesSurviveARoundTrip) {
  const PrepareShard prepare{.request = 7,
                             .identity = {"gpt", {Incarnation{1}, Step{2}}, Rank{3}, 4},
                             .tier = Tier::kDisk,
                             .into = Tier::kMemory,
                             .source_node = "n1",
                             .source_peer_address = "unix:/a",
                             .digest = 99};
  pb::PrepareShard wire;
  ToProto(prepare, &wire);
  EXPECT_EQ(FromProto(wire).value(), prepare);
  PrepareShard silent = prepare;
  silent.request.reset();
  ToProto(silent, &wire);
  EXPECT_EQ(wire.request(), 0U);
  EXPECT_EQ(FromProto(wire).value(), silent);

  JobState state{.job = "gpt",
                 .incarnation = Incarnation{5},
                 .aborted = {{Incarnation{4}, Step{10}}},
                 .restore = VersionId{Incarnation{3}, Step{7}}};
  for (const TierTraits& traits : kTierTable) {
    const uint64_t number = static_cast<uint64_t>(traits.tier);
    state.committed[traits.tier] = VersionId{Incarnation{4}, Step{5 + number}};
    if (traits.pace == TierPace::kTarget) state.target_step[traits.tier] = Step{10 + number};
  }
  state.commits = {{"gpt", LifeId{7}, {Incarnation{4}, Step{6}}, 8, 0x1f}};
  pb::JobState job;
  ToProto(state, &job);
  EXPECT_EQ(FromProto(job).value(), state);
}

TEST(ConvertTest, ACommitWithoutRanksOrDigestIsRefused) {
  const VersionCommit good{"gpt", LifeId{7}, {Incarnation{4}, Step{6}}, kWorldMax, 0x1f};
  const auto refused = [](const VersionCommit& commit) {
    pb::VersionCommit wire;
    ToProto(commit, &wire);
    const auto read = FromProto(wire);
    return !read.has_value() && read.error().code() == ErrorCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused(good));
  VersionCommit bad = good;
  bad.world = 0;
  EXPECT_TRUE(refused(bad));
  bad.world = kWorldMax + 1;
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.digest = 0;
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.job = "../etc";
  EXPECT_TRUE(refused(bad));
}

TEST(ConvertTest, RequestsSurviveARoundTrip) {
  JoinRequest join{"gpt", "run-7", Rank{3}, 8, 1001, 4096, Incarnation{5}};
  pb::JoinRequest join_wire;
  ToProto(join, &join_wire);
  EXPECT_EQ(FromProto(join_wire).value(), join);
  join.joined_before.reset();
  ToProto(join, &join_wire);
  EXPECT_EQ(FromProto(join_wire).value(), join);

  RestoreRequest restore{"gpt", Incarnation{5}, Rank{3}, VersionId{Incarnation{4}, Step{120}}, 0,
                         true};
  pb::DecideRestoreRequest restore_wire;
  ToProto(restore, &restore_wire);
  EXPECT_EQ(FromProto(restore_wire).value(), restore);
  restore.wanted.reset();
  ToProto(restore, &restore_wire);
  EXPECT_EQ(FromProto(restore_wire).value(), restore) << "the newest version";
}

TEST(ConvertTest, InvalidRequestsAreRefused) {
  pb::JoinRequest good;
  ToProto(JoinRequest{"gpt", "run-7", Rank{3}, 8, 1001, 4096, {}}, &good);
  const auto refused = [&](const std::function<void(pb::JoinRequest*)>& change) {
    pb::JoinRequest bad = good;
    change(&bad);
    return !FromProto(bad).has_value();
  };
  EXPECT_FALSE(refused([](pb::JoinRequest*) {}));
  EXPECT_TRUE(refused([](auto* bad) { bad->set_job("../etc"); }));
  EXPECT_TRUE(refused([](auto* bad) { bad->clear_run_id(); }));
  EXPECT_TRUE(refused([](auto* bad) { bad->set_run_id(std::string(kRunIdBytesMax + 1, 'r')); }));
  EXPECT_TRUE(refused([](auto* bad) { bad->set_slot_bytes(kSlotBytesMax + 1); }));
  EXPECT_TRUE(refused([](auto* bad) { bad->set_start(3); }));
  EXPECT_FALSE(FromProto(pb::DecideRestoreRequest()).has_value()) << "no job";
}

TEST(ConvertTest, EveryErrorSurvivesGrpc) {
  for (uint32_t number = 1; number <= 16; ++number) {
    Status status(ErrorFromNumber(number), "why");
    EXPECT_EQ(FromGrpc(ToGrpc(status), "here"), status);
    pb::Outcome outcome;
    ToProto(status, &outcome);
    EXPECT_EQ(FromProto(outcome), status);
  }
}

TEST(ConvertTest, TransportErrorsNameTheEndpoint) {
  Status status = FromGrpc({grpc::StatusCode::UNAVAILABLE, "connection refused"}, "127.0.0.1:7070");
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("127.0.0.1:7070: connection refused"));
}

}  // namespace
}  // namespace holdfast::coord
