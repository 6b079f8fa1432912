// The commands that call services. cluster_test.cc uses the real processes.

#include "tests/cli/online_fixture.h"

namespace holdfast::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST_F(OnlineTest, StatusOfAHealthyCluster) {
  CliResult result = AskStatus();
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_THAT(result.out, HasSubstr("HOLDFAST_OK  cluster test, coordinator epoch 3, 2 of 2 nodes "
                                    "up, 1 job\n"));
  EXPECT_THAT(result.out, HasSubstr("NODE  STATE  MEMORY   DISK  FREE\n"
                                    "n0    up        0 B  6 MiB   50%\n"));
  EXPECT_THAT(result.out,
              HasSubstr("JOB  PHASE   INC  RANKS  MEMORY        PEER  PARITY  DISK          "
                        "RESTORABLE     PENDING\n"
                        "lm   joined    1    2/2  1-20 (2h10m)  -     none    1-10 (2h10m)  "
                        "1-20 (memory)        0\n"));
}

TEST_F(OnlineTest, StatusShowsTheProgressOfParity) {
  auto* job = coordinator_.status.mutable_jobs(0);
  job->set_peer_members(8);
  EXPECT_THAT(AskStatus().out, HasSubstr("1-20 (2h10m)  -     -       1-10"));
  Set(10, job->mutable_peer_committed());
  Set(20, job->mutable_peer_target());
  job->set_peer_target_held(6);
  EXPECT_THAT(AskStatus().out, HasSubstr("1-20 (2h10m)  1-10 (2h10m)  6/8     1-10"));
  EXPECT_THAT(AskStatus({"-o", "wide"}).out, HasSubstr("1-10 (2h10m)  6/8 of 1-20  1-10"));
  auto json = AskStatus({"-o", "json"}).Json()["jobs"][0];
  EXPECT_EQ(json["peer_committed"], "1-10");
  EXPECT_TRUE(json["peer_committed_at"].is_string());
  EXPECT_EQ(json["peer_target_held"], 6);
  CliOptions plain;
  plain.env = {"NO_COLOR=1"};
  const std::string endpoint = "unix:" + (folder_ / "c.sock");
  const std::string shown = RunOnTerminal({"--endpoint", endpoint, "status"}, 80, "", plain).out;
  for (std::string line : Lines(shown.substr(shown.find("NODE  STATE")))) {
    line.erase(line.find_last_not_of('\r') + 1);
    EXPECT_LE(DisplayWidth(line), 80U) << line;
  }
}

TEST_F(OnlineTest, StatusShowsWhyAJobIsNotProtected) {
  coordinator_.status.mutable_jobs(0)->set_not_protected_why("all ranks are on one node");
  CliResult result = AskStatus();
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_THAT(result.out, HasSubstr("  NOT_PROTECTED job lm: a version that is only in memory is "
                                    "lost with its node: all ranks are on one node\n"));
}

/// A run of ten hours with `count` incidents of 36 s, one of them a lost node.
void DescribeRun(int count, ScriptedCoordinator& coordinator) {
  const int64_t now = Clock::Real().WallNanos();
  constexpr int64_t kHour = 3'600'000'000'000;
  auto* run = coordinator.runs.add_runs();
  run->mutable_spec()->set_job("lm");
  run->mutable_spec()->set_nodes(64);
  run->set_phase("running");
  run->set_started_wall_nanos(now - 10 * kHour);
  run->add_spares("n9");
  for (int i = 0; i < count; ++i) {
    auto* incident = coordinator.incidents.add_incidents();
    incident->set_job("lm");
    incident->set_wall_nanos(now - (9 - i) * kHour);
    incident->set_kind(i == 0 ? "node lost" : "worker died");
    incident->set_state("recovered");
    incident->set_first_step_ms(36'000);
    incident->set_lost_steps(0);
  }
  // Incidents without an action and those of another run are no failures of this run.
  auto* noted = coordinator.incidents.add_incidents();
  noted->set_job("lm");
  noted->set_wall_nanos(now - kHour);
  noted->set_state("noted");
  auto* before = coordinator.incidents.add_incidents();
  before->set_job("lm");
  before->set_wall_nanos(now - 11 * kHour);
  before->set_state("recovered");
}

TEST_F(OnlineTest, AdviceFromFewIncidentsIsMarked) {
  DescribeRun(1, coordinator_);
  CliResult result = Cli({"advise", "--stall", "40ms"});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_THAT(result.out, HasSubstr("job lm\n  goodput (ETTR)    0.9990 of 10h00m"));
  EXPECT_THAT(result.out, HasSubstr("save to memory    not enough incidents yet (n = 1)"));
  EXPECT_THAT(result.out, HasSubstr("spare nodes       not enough incidents yet (n = 1); at most"));
  EXPECT_THAT(result.out, Not(HasSubstr("then expected")));
  auto json = Cli({"advise", "lm", "-o", "json"}).Json();
  EXPECT_EQ(json["schema"], 2);
  EXPECT_EQ(json["kind"], "advice");
  auto job = json["jobs"][0];
  EXPECT_EQ(job["failures"]["count"], 1);
  EXPECT_TRUE(job["failures"]["mean_seconds"].is_null());
  EXPECT_TRUE(job["tiers"][0]["interval_seconds"].is_null());
  EXPECT_EQ(job["spares_now"], 1);
  EXPECT_GT(job["spares"], 0);
  coordinator_.runs.mutable_runs(0)->mutable_spec()->set_nodes(2);
  EXPECT_TRUE(Cli({"advise", "-o", "json"}).Json()["jobs"][0]["spares"].is_null());
}

TEST_F(OnlineTest, AdviceFromEnoughIncidents) {
  DescribeRun(4, coordinator_);
  CliResult result = Cli({"advise", "--stall", "memory=40ms", "--repair-time", "1h"});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_THAT(result.out, HasSubstr("4 in 10h00m: one in 2h30m"));
  EXPECT_THAT(result.out, HasSubstr("36.0 s (median), 36.0 s at worst"));
  EXPECT_THAT(result.out, HasSubstr("save to memory    every 26.8 s"));
  EXPECT_THAT(result.out, HasSubstr("save to disk      as often as possible"));
  EXPECT_THAT(result.out, HasSubstr("then expected     0.99"));
  EXPECT_EQ(Cli({"advise", "--stall", "tape=1s"}).exit_code, 64);
  EXPECT_EQ(Cli({"advise", "--stall", "memory=soon"}).exit_code, 64);
}

TEST_F(OnlineTest, AdviceWithoutRuns) {
  CliResult result = Cli({"advise"});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_THAT(result.out, HasSubstr("there are no measurements"));
}

TEST_F(OnlineTest, WhatIfNodesWereLost) {
  auto* job = coordinator_.without.add_jobs();
  job->set_job("lm");
  Set(20, job->mutable_newest());
  Set(20, job->mutable_fallback());
  job->set_keeps(true);
  CliResult safe = Cli({"advise", "--without", "n0"});
  EXPECT_EQ(safe.exit_code, 0) << safe.Shown();
  EXPECT_THAT(safe.out, HasSubstr("every newest version can still be restored"));
  Set(10, job->mutable_fallback());
  job->set_keeps(false);
  job->set_why_not("version 1-20 has no replica of rank 1");
  CliResult unsafe = Cli({"advise", "lm", "--without", "n0,n1"});
  EXPECT_EQ(unsafe.exit_code, 2) << unsafe.Shown();
  EXPECT_THAT(unsafe.out, AllOf(HasSubstr("NOT every newest version can be restored"),
                                HasSubstr("lm   1-20    NO    1-10            10  no ")));
  EXPECT_THAT(coordinator_.asked_without.nodes(), testing::ElementsAre("n0", "n1"));
  EXPECT_EQ(coordinator_.asked_without.job(), "lm");
  auto json = Cli({"advise", "--without", "n0", "-o", "json"}).Json();
  EXPECT_EQ(json["kind"], "without");
  EXPECT_EQ(json["keeps"], false);
  EXPECT_EQ(json["jobs"][0]["fallback"], "1-10");
  EXPECT_EQ(json["jobs"][0]["lost_steps"], 10);
}

/// n0 is in groups of two jobs. n1 is in none, and is down.
TEST_F(OnlineTest, Nodes) {
  auto* n0 = coordinator_.status.mutable_nodes(0);
  n0->set_held_parity_bytes(1 << 20);
  n0->mutable_arena()->set_bytes(64 << 20);
  n0->mutable_arena()->set_reserved_bytes(48 << 20);
  n0->set_peer_address("10.0.0.1:7072");
  (*n0->mutable_labels())["rack"] = "r7";
  (*n0->mutable_labels())["hall"] = "h1";
  auto add_membership = [&](const std::string& job, uint32_t group, uint32_t position,
                            uint32_t members, uint32_t parity) {
    auto* wire = n0->add_memberships();
    wire->set_job(job);
    wire->set_group(group);
    wire->set_number(group * members + position);
    wire->set_position(position);
    wire->set_members(members);
    wire->set_parity(parity);
  };
  add_membership("lm", 1, 3, 8, 2);
  add_membership("small", 0, 0, 2, 1);
  EXPECT_EQ(Cli({"nodes", "n0"}).exit_code, 0);
  coordinator_.status.mutable_nodes(1)->set_alive(false);
  coordinator::BlamedNode* blamed = coordinator_.runs.add_blamed();
  blamed->set_node("n1");
  blamed->set_jobs(2);
  CliResult result = Cli({"nodes"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out,
            "NODE  STATE  GROUP    MEMBER  SEGMENTS  MEMORY  PARITY   DISK  BLAMED  HEALTH\n"
            "n0    up     lm/1        3/8       6+2     0 B   1 MiB  6 MiB       0  ok\n"
            "             small/0     0/2       1+1\n"
            "n1    DOWN   -             -         -     0 B     0 B  6 MiB       2  NODE_DOWN\n");
  CliResult wide = Cli({"nodes", "n0", "-o", "wide"});
  EXPECT_EQ(wide.exit_code, 0) << wide.Shown();
  EXPECT_THAT(wide.out, AllOf(HasSubstr("hall=h1,rack=r7"), HasSubstr("10.0.0.1:7072"),
                              HasSubstr("48 MiB of 64 MiB"), Not(HasSubstr("n1"))));
  auto json = Cli({"nodes", "-o", "json"}).Json();
  EXPECT_EQ(json["kind"], "nodes");
  EXPECT_EQ(json["nodes"][0]["memberships"][0]["job"], "lm");
  EXPECT_EQ(json["nodes"][0]["memberships"][0]["members"], 8);
  EXPECT_EQ(json["nodes"][0]["parity_bytes"], 1 << 20);
  EXPECT_EQ(json["nodes"][0]["arena_bytes"], 64 << 20);
  EXPECT_EQ(json["nodes"][0]["arena_reserved_bytes"], 48 << 20);
  EXPECT_EQ(json["nodes"][1]["arena_bytes"], nullptr) << "an agent that does not report it";
  EXPECT_EQ(json["nodes"][1]["arena_reserved_bytes"], nullptr);
  EXPECT_EQ(json["nodes"][0]["labels"]["rack"], "r7");
  EXPECT_EQ(json["nodes"][0]["health"], "HOLDFAST_OK");
  EXPECT_EQ(json["nodes"][1]["codes"], nlohmann::json({"NODE_DOWN"}));
  EXPECT_EQ(json["nodes"][1]["blamed_by_jobs"], 2);
  EXPECT_EQ(AskStatus({"-o", "json"}).Json()["nodes"][1]["blamed_by_jobs"], 2);
  EXPECT_EQ(Cli({"nodes", "n9"}).exit_code, 4);
}

TEST_F(OnlineTest, StatusJson) {
  auto json = AskStatus({"lm", "-o", "json"}).Json();
  EXPECT_EQ(json["schema"], 2);
  EXPECT_EQ(json["kind"], "status");
  EXPECT_EQ(json["health"], "HOLDFAST_OK");
  EXPECT_EQ(json["epoch"], 3);
  EXPECT_EQ(json["nodes"][0]["disk_bytes"], 6 << 20);
  EXPECT_EQ(json["jobs"][0]["memory_committed"], "1-20");
  EXPECT_EQ(json["jobs"][0]["restorable_tier"], "memory");
  EXPECT_THAT(json["time"].get<std::string>(),
              testing::MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{12}Z"));
}

TEST_F(OnlineTest, StatusFindings) {
  coordinator_.status.mutable_nodes(1)->set_alive(false);
  coordinator_.status.mutable_nodes(0)->add_warnings("disk full: \x1b[2Jno room");
  CliResult result = AskStatus();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out, AllOf(HasSubstr("HOLDFAST_WARN"), HasSubstr("  NODE_DOWN node n1: "),
                                HasSubstr("  DISK_FULL node n0: disk full: \\x1b[2Jno room\n")));
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
  auto json = AskStatus({"-o", "json"}).Json();
  EXPECT_EQ(json["findings"].size(), 2U);
}

TEST_F(OnlineTest, StatusOfUnknownJob) {
  CliResult result = Cli({"status", "unknown-job"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("unknown-job"));
}

TEST_F(OnlineTest, WatchWritesJsonLines) {
  CliResult result = AskStatus({"--watch", "--interval", "20ms", "--count", "3", "-o", "json"});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  std::vector<std::string> lines = Lines(result.out);
  ASSERT_EQ(lines.size(), 3U);
  for (const std::string& line : lines)
    EXPECT_EQ(nlohmann::json::parse(line, nullptr, false)["kind"], "status");
}

TEST_F(OnlineTest, WatchEndsAtSigint) {
  CliOptions options;
  options.while_running = [](pid_t child, const std::string& out) {
    for (int i = 0; i < 1000 && ReadText(out).empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ::kill(child, SIGINT);
  };
  CliResult result = Cli({"versions", "-w", "--interval", "1h"}, options);
  EXPECT_EQ(result.exit_code, 130) << result.Shown();
}

TEST_F(OnlineTest, Versions) {
  CliResult result = Cli({"versions", "lm"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(
      result.out,
      "VERSION  STATE      TIERS        AVAILABLE      SIZE  WORLD    AGE  PINNED  RESTORABLE  "
      "SURVIVES\n"
      "1-20     committed  memory,disk  memory,disk  20 MiB      2  2h10m  no      yes         "
      "any 1 node of each group; full power cut\n"
      "1-10     committed  memory,disk  -            10 MiB      2  2h10m  no      no          "
      "-\n");
  EXPECT_THAT(Cli({"versions", "-o", "wide"}).out,
              AllOf(HasSubstr("JOB"), HasSubstr("rank 1: n1 is down")));
  EXPECT_THAT(Cli({"versions", "lm", "--restorable"}).out, Not(HasSubstr("1-10")));
  auto json = Cli({"versions", "lm", "--sort", "size", "-r", "-o", "json"}).Json();
  ASSERT_EQ(json["versions"].size(), 2U);
  EXPECT_EQ(json["versions"][0]["version"], "1-10");
  EXPECT_EQ(json["versions"][0]["why_not"], "rank 1: n1 is down");
  EXPECT_EQ(json["versions"][1]["tiers"], nlohmann::json({"memory", "disk"}));
  EXPECT_EQ(json["versions"][1]["bytes"], 20 << 20);
  EXPECT_EQ(json["versions"][1]["step"], 20);
  EXPECT_EQ(json["versions"][1]["survives"], "any 1 node of each group; full power cut");
  EXPECT_EQ(json["versions"][0]["survives"], "");
}

TEST_F(OnlineTest, AbortedVersionsDoNotHideTheOthers) {
  auto& versions = coordinator_.versions["lm"];
  for (uint64_t step : {21, 22}) {
    auto* aborted = versions.add_versions();
    Set(step, aborted->mutable_version());
    aborted->set_state("aborted");
  }
  CliResult result = Cli({"versions", "lm"});
  EXPECT_THAT(result.out, AllOf(Not(HasSubstr("1-21")), HasSubstr("1-20"),
                                HasSubstr("2 aborted versions not shown: --all shows them\n")));
  EXPECT_THAT(Cli({"versions", "lm", "--all"}).out,
              AllOf(HasSubstr("1-21"), HasSubstr("1-22"), Not(HasSubstr("not shown"))));
  const auto json = Cli({"versions", "lm", "-o", "json"}).Json();
  EXPECT_EQ(json["versions"].size(), 2U);
  EXPECT_EQ(json["aborted_left_out"], 2);
}

TEST_F(OnlineTest, AReleaseWaitsForTheSelfTestOfTheNode) {
  EXPECT_EQ(Cli({"quarantine"}).out, "no node is in quarantine\n");
  coordinator::GetRunsReply quarantined;
  quarantined.add_quarantine()->set_node("n1");
  quarantined.mutable_quarantine(0)->set_why("three launches failed");
  coordinator_.runs = quarantined;
  EXPECT_THAT(Cli({"quarantine"}).out, HasSubstr("three launches failed"));
  EXPECT_THAT(AskStatus().out, HasSubstr("until `holdfast quarantine n1 --release`: three"));
  coordinator_.after_self_test = coordinator::GetRunsReply();
  CliResult result = Cli({"quarantine", "n1", "--release"});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_EQ(result.out, "no node is in quarantine\n");
  EXPECT_FALSE(coordinator_.quarantined.untested());
  coordinator_.runs = coordinator_.after_self_test.emplace(quarantined);
  coordinator_.after_self_test->mutable_quarantine(0)->set_why("its self-test failed: cpu");
  result = Cli({"quarantine", "n1", "--release", "-o", "json"});
  EXPECT_EQ(result.exit_code, 2) << result.Shown();
  EXPECT_EQ(result.Json()["nodes"][0]["why"], "its self-test failed: cpu");
  EXPECT_EQ(result.Json()["nodes"][0]["testing"], false);
  coordinator_.runs.mutable_quarantine(0)->set_testing(true);
  EXPECT_THAT(Cli({"quarantine"}).out, HasSubstr("after its self-test"));
  EXPECT_THAT(AskStatus().out, HasSubstr("until its self-test has passed"));
  EXPECT_EQ(Cli({"quarantine", "n1", "--untested"}).exit_code, 64);
  EXPECT_EQ(Cli({"quarantine", "n1", "--release", "--untested"}).exit_code, 0);
  EXPECT_TRUE(coordinator_.quarantined.untested());
}

TEST_F(OnlineTest, RunsAreListed) {
  EXPECT_EQ(Cli({"runs"}).out, "no job was launched with `holdfast run`\n");
  auto* run = coordinator_.runs.add_runs();
  run->mutable_spec()->set_job("gpt");
  run->mutable_spec()->set_nodes(4);
  run->mutable_spec()->set_restarts_max(10);
  run->mutable_spec()->add_command("python");
  run->mutable_spec()->add_command("train.py");
  run->set_phase("waiting");
  run->set_run_id("run-1.3");
  run->set_restarts(2);
  run->set_why("waits for 1 more node");
  run->add_nodes("n0");
  CliResult waiting = Cli({"runs"});
  EXPECT_EQ(waiting.exit_code, 2) << waiting.Shown();
  EXPECT_THAT(waiting.out, AllOf(HasSubstr("gpt  waiting  run-1.3      4      2/10"),
                                 HasSubstr("waits for 1 more node")));
  EXPECT_THAT(Cli({"runs", "-o", "wide"}).out, HasSubstr("python train.py"));
  const auto json = Cli({"runs", "-o", "json"}).Json();
  EXPECT_EQ(json["runs"][0]["job"], "gpt");
  EXPECT_EQ(json["runs"][0]["nnodes"], 4);
  EXPECT_EQ(json["runs"][0]["nodes"], nlohmann::json({"n0"}));
  CliResult status = AskStatus();
  EXPECT_EQ(status.exit_code, 2);
  EXPECT_THAT(status.out, HasSubstr("RUN_WAITING job gpt: its run waits for 1 more node\n"));
  run->set_phase("finished");
  EXPECT_EQ(Cli({"runs"}).exit_code, 0);
}

TEST_F(OnlineTest, PinAndUnpin) {
  EXPECT_EQ(Cli({"pin", "lm", "1-20"}).out, "lm/1-20 is pinned\n");
  EXPECT_TRUE(coordinator_.pinned.pinned());
  EXPECT_EQ(coordinator_.pinned.version().step(), 20U);
  EXPECT_EQ(Cli({"unpin", "lm", "1-20", "-o", "json"}).Json()["pinned"], false);
  EXPECT_FALSE(coordinator_.pinned.pinned());
  EXPECT_EQ(Cli({"pin", "lm", "newest"}).out, "lm/1-20 is pinned\n");
  EXPECT_EQ(coordinator_.pinned.version().incarnation(), 0U);
  EXPECT_EQ(Cli({"unpin", "lm", "newest"}).exit_code, 64);
  coordinator_.pin_outcome = NotFoundError("lm has no version 1-21");
  EXPECT_EQ(Cli({"pin", "lm", "1-21"}).exit_code, 4);
  coordinator_.pin_outcome = FencedError("an older coordinator");
  EXPECT_EQ(Cli({"pin", "lm", "1-21"}).exit_code, 6);
}

TEST_F(OnlineTest, Dump) {
  auto json = Cli({"dump", "n1"}).Json();
  EXPECT_EQ(json["node"], "n1");
  EXPECT_EQ(json["dump"]["slots"], 3);
  EXPECT_EQ(Cli({"dump", "n9"}).exit_code, 4);
  coordinator_.status.mutable_nodes(1)->set_alive(false);
  EXPECT_EQ(Cli({"dump", "n1"}).exit_code, 5);
}

TEST_F(OnlineTest, VerifyEveryTier) {
  CliResult result = Cli({"verify", "lm", "--deep", "--version", "1-20"});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_THAT(result.out, AllOf(HasSubstr("memory"), HasSubstr("disk"),
                                HasSubstr("4 shards checked, every byte: 4 ok")));
  // 1-10 is committed, but no tier has all of its shards on live nodes.
  CliResult all = Cli({"verify"});
  EXPECT_EQ(all.exit_code, 3) << all.Shown();
  EXPECT_THAT(all.out, HasSubstr("note: lm/1-10: no tier has all of its shards on live nodes: "
                                 "rank 1: n1 is down"));
  EXPECT_EQ(Cli({"verify", "lm", "--version", "1-21"}).exit_code, 4);
  // One outcome for each run that checked something of a version.
  ASSERT_EQ(coordinator_.verified.size(), 2U);
  EXPECT_EQ(coordinator_.verified[0].job(), "lm");
  EXPECT_EQ(coordinator_.verified[0].version().step(), 20U);
  EXPECT_EQ(coordinator_.verified[0].verification().ok(), 4U);
  EXPECT_TRUE(coordinator_.verified[0].verification().deep());
  EXPECT_FALSE(coordinator_.verified[1].verification().deep());
}

TEST_F(OnlineTest, VerifyDistinguishesDamageFromTimeouts) {
  FlipBit(folder_ / "n1/lm/v1-20/rank-0.safetensors", (1 << 20) + 1);
  CliResult damaged = Cli({"verify", "lm", "--version", "1-20", "--deep", "-o", "json"});
  EXPECT_EQ(damaged.exit_code, 2) << damaged.Shown();
  int bad = 0;
  const auto json = damaged.Json();
  for (const auto& shard : json["shards"]) {
    if (shard["result"] == "ok") continue;
    ++bad;
    EXPECT_EQ(shard["result"], "DAMAGED");
    EXPECT_EQ(shard["node"], "n1");
    EXPECT_EQ(shard["shard"], "rank-0");
    EXPECT_THAT(shard["message"].get<std::string>(), HasSubstr("chunk 1"));
  }
  EXPECT_EQ(bad, 1);
  agent_servers_[1].server->Shutdown(std::chrono::system_clock::time_point::min());
  agent_servers_[1].server.reset();
  CliResult silent = Cli({"verify", "lm", "--version", "1-20"});
  EXPECT_EQ(silent.exit_code, 3) << silent.Shown();
  EXPECT_THAT(silent.out, AllOf(HasSubstr("UNCHECKED"), HasSubstr("2 not checked")));
}

TEST_F(OnlineTest, RestoreFromTheNearestTier) {
  CliResult result = Restore();
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  ExpectRestored();
  EXPECT_THAT(result.out,
              HasSubstr("RANK  NODE  TIER       SIZE  FILE\n"
                        "   0  n0    memory  3.0 MiB  rank-00000-of-00002.safetensors\n"));
  EXPECT_EQ(agents_[1]->reads, 0);
}

TEST_F(OnlineTest, RestoreFromChosenTier) {
  auto json = Restore({"--tier", "disk", "-o", "json"}).Json();
  EXPECT_EQ(json["restored"], true);
  EXPECT_EQ(json["shards"][0]["tier"], "disk");
  EXPECT_EQ(agents_[0]->reads, 0);
  ExpectRestored();
}

TEST_F(OnlineTest, RestoreFallsBackToAnotherTier) {
  for (Fault fault : {Fault::kFlip, Fault::kCut, Fault::kWrongShard, Fault::kDisorder}) {
    agents_[0]->fault = fault;
    CliResult result = Restore({"-o", "json"});
    EXPECT_EQ(result.exit_code, 0) << static_cast<int>(fault) << result.Shown();
    EXPECT_THAT(result.err, HasSubstr("trying disk on n1"));
    EXPECT_EQ(result.Json()["shards"][1]["tier"], "disk");
    ExpectRestored();
    fs::remove_all(folder_ / "out");
  }
}

TEST_F(OnlineTest, DamagedStreamIsNeverWritten) {
  agents_[0]->fault = Fault::kFlip;
  CliResult result = Restore({"--tier", "memory"});
  EXPECT_EQ(result.exit_code, 2) << result.Shown();
  EXPECT_THAT(result.err, AllOf(HasSubstr("chunk 1"), HasSubstr("node n0")));
  ExpectNothingRestored();
}

TEST_F(OnlineTest, BytesOfAnotherCommitAreRefused) {
  auto* source = coordinator_.plans[1].mutable_sources(0);
  source->set_digest(source->digest() ^ 1);
  CliResult result = Restore({"--tier", "memory"});
  EXPECT_EQ(result.exit_code, 2) << result.Shown();
  EXPECT_THAT(result.err, HasSubstr("the committed one"));
  ExpectNothingRestored();
}

TEST_F(OnlineTest, ABusyAgentIsRetried) {
  agents_[0]->fault = Fault::kBusy;
  CliResult result = Restore({"--tier", "memory"});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  ExpectRestored();
  EXPECT_EQ(agents_[0]->reads, 6);  // two are refused; a seal and the chunks of two shards
}

TEST_F(OnlineTest, SilentAgentTimesOut) {
  agents_[0]->fault = Fault::kSilent;
  CliResult result = Restore({"--tier", "memory", "--timeout", "300ms"});
  EXPECT_EQ(result.exit_code, 124) << result.Shown();
  ExpectNothingRestored();
}

TEST_F(OnlineTest, InterruptedRestoreLeavesNothing) {
  agents_[0]->fault = Fault::kSilent;
  CliOptions options;
  options.while_running = [this](pid_t child, const std::string&) {
    for (int i = 0; i < 500 && agents_[0]->reads < 2; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ::kill(child, SIGINT);
  };
  CliResult result = Restore({"--timeout", "1m"}, options);
  EXPECT_EQ(result.exit_code, 130) << result.Shown();
  EXPECT_TRUE(fs::exists(folder_ / "out"));
  ExpectNothingRestored();
}

TEST_F(OnlineTest, IncompletePlanIsRefused) {
  coordinator_.plans[0].mutable_sources()->RemoveLast();
  CliResult result = Restore();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("exactly one source for each rank"));
}

TEST_F(OnlineTest, RestoreWithoutAVersionFails) {
  coordinator_.plans.clear();
  EXPECT_EQ(Restore().exit_code, 4);
}

TEST_F(OnlineTest, AShortCommandPrintsNothingOnStderr) { EXPECT_EQ(Restore().err, ""); }

}  // namespace
}  // namespace holdfast::cli
