#include "agent/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::agent {
namespace {

using ::testing::HasSubstr;

TEST(AgentConfig, DefaultsAreValidAndRoundTrip) {
  AgentConfig config;
  config.node = "n0";
  ConfigSchema schema("agent");
  config.Bind(schema);
  EXPECT_EQ(config.Check(), Status::Ok());
  const std::string text = schema.Render();
  EXPECT_EQ(schema.LoadText(text, "rendered"), Status::Ok());
  EXPECT_EQ(schema.Render(), text);
}

TEST(AgentConfig, LoadsEveryKey) {
  AgentConfig config;
  ConfigSchema schema("agent");
  config.Bind(schema);
  ASSERT_EQ(schema.LoadText(R"(
    cluster = "c"
    node = "n7"
    coordinator = "unix:/run/c.sock"
    data_listen = "127.0.0.1:7001"
    run_dir = "/run/h"
    data_dirs = ["/a", "/b"]
    log_level = "debug"
    [arena]
    bytes = "2GiB"
    [disk]
    every = 10
    [io]
    io_uring = false
    direct = false
    queue_depth = 4
  )",
                            "test"),
            Status::Ok());
  EXPECT_EQ(config.Check(), Status::Ok());
  EXPECT_EQ(config.arena_bytes, 2ULL << 30);
  EXPECT_EQ(config.disk_every_steps, 10);
  EXPECT_EQ(config.data_dirs.size(), 2U);
  EXPECT_FALSE(config.io_uring);
  EXPECT_EQ(config.queue_depth, 4);
}

TEST(AgentConfig, UnknownKeysAreNamed) {
  AgentConfig config;
  ConfigSchema schema("agent");
  config.Bind(schema);
  const Status status = schema.LoadText("nodes = \"a\"\n", "agent.toml");
  EXPECT_THAT(status.message(), HasSubstr("nodes"));
  EXPECT_THAT(status.message(), HasSubstr("node"));
}

TEST(AgentConfig, InvalidValuesAreRefused) {
  const auto check = [](const std::function<void(AgentConfig&)>& change) {
    AgentConfig config;
    config.node = "n0";
    change(config);
    return config.Check().message();
  };
  EXPECT_THAT(check([](AgentConfig& c) { c.node = "a/b"; }), HasSubstr("node"));
  EXPECT_THAT(check([](AgentConfig& c) { c.cluster = ""; }), HasSubstr("cluster"));
  EXPECT_THAT(check([](AgentConfig& c) { c.coordinator = "nowhere"; }), HasSubstr("coordinator"));
  EXPECT_THAT(check([](AgentConfig& c) { c.data_listen = "x:99999"; }), HasSubstr("data_listen"));
  EXPECT_THAT(check([](AgentConfig& c) { c.run_dir = "run"; }), HasSubstr("absolute"));
  EXPECT_THAT(check([](AgentConfig& c) { c.run_dir = "/" + std::string(120, 'r'); }),
              HasSubstr("too long"));
  EXPECT_THAT(check([](AgentConfig& c) { c.data_dirs = {}; }), HasSubstr("data_dirs"));
  EXPECT_THAT(check([](AgentConfig& c) { c.data_dirs = {"/a", "/a"}; }), HasSubstr("twice"));
  EXPECT_THAT(check([](AgentConfig& c) { c.arena_bytes = 1; }), HasSubstr("arena.bytes"));
  EXPECT_THAT(check([](AgentConfig& c) { c.log_level = "loud"; }), HasSubstr("loud"));
  EXPECT_THAT(check([](AgentConfig& c) { c.arena_priority_percent = 25; }),
              HasSubstr("keeps 25 % of the arena for no job"));
  EXPECT_THAT(check([](AgentConfig& c) { c.arena_priority_jobs = {"a/b"}; }),
              HasSubstr("limits.arena_priority_jobs"));
  EXPECT_EQ(check([](AgentConfig& c) { c.peers.advertise = "127.0.0.1:7072"; }), "");
  EXPECT_THAT(check([](AgentConfig& c) { c.peers.advertise = "127.0.0.1:0"; }),
              HasSubstr("no port"));
  EXPECT_THAT(check([](AgentConfig& c) { c.peers.advertise = "nowhere"; }),
              HasSubstr("peers.advertise"));
  // Other machines reach this address, possibly through address translation.
  EXPECT_THAT(check([](AgentConfig& c) { c.peers.advertise = "10.0.0.7:7072"; }),
              HasSubstr("secret"));
}

}  // namespace
}  // namespace holdfast::agent
