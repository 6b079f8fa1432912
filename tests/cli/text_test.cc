#include "cli/core/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/core/exit_code.h"
#include "cli/core/options.h"
#include "cli/core/table.h"
#include "cli/shards/shard_check.h"

namespace holdfast::cli {
namespace {

using testing::ElementsAre;

TEST(TextTest, HostileNamesCannotControlTheTerminal) {
  EXPECT_EQ(Printable("plain Größe 重み"), "plain Größe 重み");
  EXPECT_EQ(Printable("a\x1b[31mred\n"), "a\\x1b[31mred\\x0a");
  EXPECT_EQ(Printable("\xc2\x9b"), "\\u{9b}");  // C1 control sequence introducer
  EXPECT_EQ(Printable("a\xe2\x80\xae"
                      "b"),
            "a\\u{202e}b");  // right-to-left override
  EXPECT_EQ(Printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(Printable("\xe0\x80\x80"), "\\xe0\\x80\\x80");  // overlong
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // surrogate
}

TEST(TextTest, WidthCountsColumns) {
  EXPECT_EQ(DisplayWidth("abc"), 3U);
  EXPECT_EQ(DisplayWidth("重み"), 4U);
  EXPECT_EQ(DisplayWidth("e\xcc\x81"), 1U);
  EXPECT_EQ(FitWidth("abcdef", 4), "abc…");
  EXPECT_EQ(FitWidth("abcd", 4), "abcd");
  EXPECT_EQ(FitWidth("重みです", 4), "重…");  // a wide character is not split
  EXPECT_EQ(FitWidth("abc", 0), "");
  EXPECT_EQ(Pad("重", 4, true), "  重");
}

TEST(TextTest, Ages) {
  EXPECT_EQ(FormatAge(-5'000'000'000), "now");
  EXPECT_EQ(FormatAge(12'000'000'000), "12s");
  EXPECT_EQ(FormatAge(185'000'000'000), "3m05s");
  EXPECT_EQ(FormatAge(7'860'000'000'000), "2h11m");
  EXPECT_EQ(FormatAge(356'400'000'000'000), "4d03h");
}

TEST(TableTest, PlainTableHasNoTrailingSpaces) {
  Table table({{"NAME", false, true}, {"SIZE", true, false}, {"STATE", false, false}});
  table.Add({{"weights"}, {"12 B"}, {"ok", Tone::kGood}});
  table.Add({{"b"}, {"1.5 GiB"}, {""}});
  EXPECT_EQ(table.Render(0, false),
            "NAME        SIZE  STATE\n"
            "weights     12 B  ok\n"
            "b        1.5 GiB\n");
}

TEST(TableTest, ColourOnlyWhenAsked) {
  Table table({{"STATE", false, false}});
  table.Add({{"DOWN", Tone::kBad}});
  EXPECT_EQ(table.Render(0, true), "STATE\n\x1b[31mDOWN\x1b[0m\n");
  EXPECT_EQ(table.Render(0, false), "STATE\nDOWN\n");
}

TEST(TableTest, FitsTheTerminal) {
  Table table({{"NAME", false, true}, {"SIZE", true, false}});
  table.Add({{"a-very-long-name-of-a-node"}, {"12345 B"}});
  EXPECT_EQ(table.Render(20, false),
            "NAME            SIZE\n"
            "a-very-lon…  12345 B\n");
  for (size_t width = 1; width < 40; ++width) {
    std::string text = table.Render(width, false);
    for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
      EXPECT_LE(DisplayWidth(text.substr(at, end - at)), width) << text;
  }
}

TEST(TableTest, CellsAreMadePrintable) {
  Table table({{"NAME", false, true}});
  table.Add({{"x\ny"}});
  EXPECT_EQ(table.Render(0, false), "NAME\nx\\x0ay\n");
}

TEST(OptionsTest, Durations) {
  EXPECT_EQ(ParseDurationMs("500ms").value_or(0), 500);
  EXPECT_EQ(ParseDurationMs("10s").value_or(0), 10'000);
  EXPECT_EQ(ParseDurationMs("1.5").value_or(0), 1500);
  EXPECT_EQ(ParseDurationMs("2m").value_or(0), 120'000);
  for (const char* bad : {"", "s", "-1s", "0", "nan", "inf", "1e99s", "10 s", "5d"})
    EXPECT_FALSE(ParseDurationMs(bad).has_value()) << bad;
}

TEST(OptionsTest, Shares) {
  EXPECT_DOUBLE_EQ(ParseShare("5%").value_or(0), 0.05);
  EXPECT_DOUBLE_EQ(ParseShare("100%").value_or(0), 1);
  EXPECT_DOUBLE_EQ(ParseShare("0.25").value_or(0), 0.25);
  for (const char* bad : {"", "%", "0%", "101%", "-5%", "5", "five"})
    EXPECT_FALSE(ParseShare(bad).has_value()) << bad;
}

TEST(ExitCodeTest, ErrorsKeepTheirCodes) {
  EXPECT_EQ(ExitCodeOf(Status::Ok()), ExitCode::kOk);
  EXPECT_EQ(ExitCodeOf(DataLossError("")), ExitCode::kFinding);
  EXPECT_EQ(ExitCodeOf(NotFoundError("")), ExitCode::kNotFound);
  EXPECT_EQ(ExitCodeOf(UnavailableError("")), ExitCode::kUnreachable);
  EXPECT_EQ(ExitCodeOf(FencedError("")), ExitCode::kFenced);
  EXPECT_EQ(ExitCodeOf(DeadlineExceededError("")), ExitCode::kTimeout);
  EXPECT_EQ(ExitCodeOf(OutOfSpaceError("")), ExitCode::kError);
  EXPECT_EQ(Worse(ExitCode::kPartial, ExitCode::kFinding), ExitCode::kFinding);
  EXPECT_EQ(Worse(ExitCode::kFinding, ExitCode::kOk), ExitCode::kFinding);
}

TEST(SampleTest, KeepsTheShareInOrder) {
  CheckReport report;
  for (uint32_t rank = 0; rank < 100; ++rank) {
    ShardCheck check;
    check.key.rank = Rank{rank};
    report.checks.push_back(check);
  }
  TakeSample(0.05, report);
  EXPECT_EQ(report.checks.size(), 5U);
  EXPECT_EQ(report.left_out, 95U);
  for (size_t i = 1; i < report.checks.size(); ++i)
    EXPECT_LT(report.checks[i - 1].key.rank, report.checks[i].key.rank);
  TakeSample(0.001, report);
  EXPECT_EQ(report.checks.size(), 1U);
}

}  // namespace
}  // namespace holdfast::cli
