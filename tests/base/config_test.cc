#include "base/config.h"

#include <gtest/gtest.h>

#include <fstream>

namespace holdfast {
namespace {

struct Fields {
  std::string node = "n0";
  bool direct = true;
  int64_t depth = 16;
  std::vector<std::string> dirs = {"/a", "/b"};
  uint64_t arena = 64ULL << 20;

  ConfigSchema Schema() {
    ConfigSchema schema("test");
    schema.Add("node", &node, "Name of the node.");
    schema.Add("dirs", &dirs, "Where.");
    schema.Add("io.direct", &direct, "O_DIRECT.");
    schema.Add("io.depth", &depth, "Operations in flight.", 1, 4096);
    schema.AddBytes("arena.bytes", &arena, "Budget.");
    return schema;
  }
};

TEST(ConfigTest, LoadsEveryKind) {
  Fields fields;
  Status status = fields.Schema().LoadText(
      "node = 'x'\ndirs = ['/d']\n[io]\ndirect = false\ndepth = 8\n[arena]\nbytes = '2GiB'\n", "f");
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(fields.node, "x");
  EXPECT_EQ(fields.dirs, std::vector<std::string>{"/d"});
  EXPECT_FALSE(fields.direct);
  EXPECT_EQ(fields.depth, 8);
  EXPECT_EQ(fields.arena, 2ULL << 30);
}

TEST(ConfigTest, ReportsAllMistakesAtOnce) {
  Fields fields;
  Status status = fields.Schema().LoadText(
      "nod = 'x'\n[io]\ndirect = 1\ndepth = 0\n[arena]\nbytes = '2 parsecs'\n", "agent.toml");
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  for (const char* part : {"agent.toml:1: unknown key 'nod' (did you mean 'node'?)",
                           "'io.direct' expects true or false", "whole number from 1 to 4096",
                           "'2 parsecs' is not a size"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

TEST(ConfigTest, RefusesBrokenTomlWithItsLine) {
  Fields fields;
  Status status = fields.Schema().LoadText("node = 'x'\nnode =\n", "f.toml");
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(status.message().find("f.toml:2"), std::string::npos) << status.message();
}

TEST(ConfigTest, RenderedTextLoadsBackUnchanged) {
  Fields fields;
  fields.node = "quote\"d \\ name";
  std::string text = fields.Schema().Render();
  Fields other;
  other.dirs.clear();
  ASSERT_TRUE(other.Schema().LoadText(text, "rendered").ok());
  EXPECT_EQ(other.Schema().Render(), text);
  EXPECT_EQ(other.node, fields.node);
}

TEST(ConfigTest, SetAcceptsUnquotedTextAndToml) {
  Fields fields;
  ConfigSchema schema = fields.Schema();
  EXPECT_TRUE(schema.Set("node=bare").ok());
  EXPECT_TRUE(schema.Set("io.depth=32").ok());
  EXPECT_TRUE(schema.Set("arena.bytes=1GiB").ok());
  EXPECT_TRUE(schema.Set("dirs=[\"/q\"]").ok());
  EXPECT_EQ(fields.node, "bare");
  EXPECT_EQ(fields.depth, 32);
  EXPECT_EQ(fields.arena, 1ULL << 30);
  EXPECT_EQ(fields.dirs, std::vector<std::string>{"/q"});
  EXPECT_FALSE(schema.Set("node").ok());
  EXPECT_NE(schema.Set("io.dept=bare").message().find("did you mean 'io.depth'"),
            std::string::npos);
}

TEST(ConfigTest, ARetiredKeyIsRefusedWithTheRemedyUnlessItIsOff) {
  Fields fields;
  ConfigSchema schema = fields.Schema();
  schema.Retire("io.shared", "set io.depth");
  EXPECT_TRUE(schema.LoadText("[io]\nshared = false\n", "f.toml").ok());
  for (const char* value : {"true", "0", "'false'"}) {
    const Status status = schema.LoadText("[io]\nshared = " + std::string(value) + "\n", "f.toml");
    EXPECT_EQ(status.message(), "f.toml:2: 'io.shared' is no longer supported: set io.depth");
  }
  EXPECT_FALSE(schema.Set("io.shared=true").ok());
  EXPECT_EQ(schema.Render().find("shared"), std::string::npos);
}

TEST(ConfigTest, AMissingFileIsNamed) {
  Fields fields;
  Status status = fields.Schema().LoadFile("/nonexistent/agent.toml");
  EXPECT_EQ(status.code(), ErrorCode::kNotFound);
  EXPECT_NE(status.message().find("/nonexistent/agent.toml"), std::string::npos);
}

TEST(BytesTest, ParsesAndFormats) {
  EXPECT_EQ(ParseBytes("512").value(), 512U);
  EXPECT_EQ(ParseBytes("3 MiB").value(), 3U << 20);
  EXPECT_EQ(ParseBytes("2GB").value(), 2'000'000'000U);
  for (const char* bad : {"", "MiB", "-1", "1.5GiB", "18446744073709551615TiB", "1 mib"}) {
    EXPECT_FALSE(ParseBytes(bad).has_value()) << bad;
  }
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(64ULL << 20), "64 MiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
}

}  // namespace
}  // namespace holdfast
