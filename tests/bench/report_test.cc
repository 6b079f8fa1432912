// The form that all benchmarks share, and the front end as its user calls it.

#include "bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace holdfast::bench {
namespace {
using nlohmann::json;

BenchResult Once(const std::string& name, double ratio) {
  return {.name = name,
          .ratio = ratio,
          .ours = 10 * ratio,
          .reference = 10,
          .unit = "ms",
          .goal = "<=1",
          .note = ""};
}

TEST(ReportTest, RepetitionsBecomeMedianAndSpread) {
  const auto combined =
      Combine({{Once("a", 3), Once("b", 7)}, {Once("a", 1)}, {Once("a", 2), Once("b", 9)}});
  ASSERT_EQ(combined.size(), 2U);
  EXPECT_EQ(combined[0].name, "a");
  EXPECT_EQ(combined[0].ratio, 2);
  EXPECT_EQ(combined[0].ours, 20);
  EXPECT_EQ(combined[0].repetitions, 3U);
  EXPECT_EQ(combined[0].least, 1);
  EXPECT_EQ(combined[0].most, 3);
  EXPECT_EQ(combined[1].ratio, 8);
  EXPECT_EQ(combined[1].repetitions, 2U);
}

TEST(ReportTest, WhatRepeatedItselfKeepsItsSpread) {
  BenchResult result = Once("torch_1_blocked", 30);
  result.repetitions = 5;
  result.least = 20;
  result.most = 44;
  const auto combined = Combine({{result}});
  EXPECT_EQ(combined[0].repetitions, 5U);
  EXPECT_EQ(combined[0].least, 20);
  EXPECT_EQ(combined[0].most, 44);
}

TEST(ReportTest, AResultIsReadBackAsItWasWritten) {
  BenchResult result = Once("a", 2);
  result.repetitions = 5;
  result.least = 1;
  result.most = 3;
  result.note = "why";
  const auto read = ResultFromJson(json::parse(ToJson(result).dump()));
  ASSERT_TRUE(read) << read.error().ToString();
  EXPECT_EQ(ToJson(*read), ToJson(result));
}

TEST(ReportTest, WhatIsNoResultIsRefused) {
  for (const char* text : {"{}", "[]", "7", R"({"name": "a", "ratio": "fast"})"}) {
    EXPECT_FALSE(ResultFromJson(json::parse(text))) << text;
  }
  json result = json::parse(ToJson(Combine({{Once("a", 2)}})[0]).dump());
  EXPECT_TRUE(ResultFromJson(result));
  result["repetitions"] = 0;
  EXPECT_FALSE(ResultFromJson(result));
}

/// Runs the front end in a new folder.
class FrontEndTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "front-end-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  int Run(const std::string& arguments) {
    const std::string command = std::string(std::getenv("HOLDFAST_BIN_DIR")) +
                                "/holdfast-bench --dir " + folder_ + " " + arguments + " >" +
                                folder_ + "/out 2>" + folder_ + "/errors";
    const int state = std::system(command.c_str());
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  std::string folder_;
};

TEST_F(FrontEndTest, AnUnknownNameIsAnErrorBeforeAnythingRuns) {
  EXPECT_EQ(Run("--quick --json " + folder_ + "/r.json checksum torhc"), 1);
  EXPECT_THAT(Read("errors"), testing::HasSubstr("unknown benchmark 'torhc'"));
  EXPECT_THAT(Read("errors"), testing::HasSubstr("torch"));
  EXPECT_EQ(Read("out"), "");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/r.json"));
}

TEST_F(FrontEndTest, AProgramThatCannotRunIsAnError) {
  // There is no bench/torch.sh in the folder.
  const std::string here = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  EXPECT_EQ(Run("--json " + folder_ + "/r.json torch"), 1);
  std::filesystem::current_path(here);
  EXPECT_EQ(json::parse(Read("r.json"))["results"].size(), 0U);
}

TEST_F(FrontEndTest, NamesAndOptionsComeInAnyOrder) {
  for (const char* arguments :
       {"checksum --quick --repeat 2 --json ", "--quick --repeat 2 checksum --json "}) {
    ASSERT_EQ(Run(arguments + folder_ + "/r.json"), 0) << Read("errors");
    const json document = json::parse(Read("r.json"));
    EXPECT_EQ(document["schema"], 2);
    EXPECT_GT(document["machine"]["cores"], 0);
    ASSERT_EQ(document["results"].size(), 1U);
    const json result = document["results"][0];
    EXPECT_EQ(result["name"], "checksum");
    EXPECT_EQ(result["repetitions"], 2);
    EXPECT_GT(result["ratio"], 0);
    EXPECT_LE(result["spread"][0], result["ratio"]);
    EXPECT_GE(result["spread"][1], result["ratio"]);
    std::vector<std::string> keys;
    for (const auto& [key, value] : result.items()) keys.push_back(key);
    EXPECT_THAT(keys, testing::IsSupersetOf({"name", "ratio", "ours", "reference", "unit", "goal",
                                             "repetitions", "spread"}));
  }
}

TEST_F(FrontEndTest, TheFaultMatrixUsesTheSameForm) {
  ASSERT_EQ(Run("fault-matrix --quick --seeds 1 --ranks 8 --family ddp --fault sigkill --json " +
                folder_ + "/r.json"),
            0)
      << Read("errors");
  const json document = json::parse(Read("r.json"));
  EXPECT_EQ(document["schema"], 2);
  std::vector<std::string> names;
  for (const json& result : document["results"]) {
    EXPECT_TRUE(ResultFromJson(result)) << result;
    names.push_back(result["name"]);
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"recall_dead", "exact_dead", "precision_dead",
                                            "recall_dead/ddp", "verdict_p99_s_dead"}));
}

}  // namespace
}  // namespace holdfast::bench
