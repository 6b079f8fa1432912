// The style rules that a machine can check, over every source file of the tree.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace holdfast {
namespace {
namespace fs = std::filesystem;

struct Source {
  std::string path;  // from the root
  std::vector<std::string> lines;
};

/// The tree's files with one of the endings. Build folders and the corpora of fuzzers are left out.
std::vector<Source> FilesThatEndIn(const std::set<std::string>& endings) {
  std::vector<Source> found;
  const fs::path root = HOLDFAST_SOURCE_DIR;
  auto add = [&](const fs::path& path) {
    if (endings.count(path.extension()) == 0) return;
    Source source{fs::relative(path, root), {}};
    if (source.path.find("/corpus/") != std::string::npos) return;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) source.lines.push_back(line);
    found.push_back(std::move(source));
  };
  for (const char* room : {"base", "storage", "agent", "coordinator", "client", "cli", "faults",
                           "testing", "tests", "bench", "deploy", "docs", "cmake"}) {
    if (!fs::exists(root / room)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
      if (entry.is_regular_file()) add(entry.path());
    }
  }
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.is_regular_file()) add(entry.path());
  }
  return found;
}

const std::vector<Source>& Sources() {
  static const std::vector<Source> sources = FilesThatEndIn({".h", ".hpp", ".cc", ".c", ".cu"});
  return sources;
}

/// Everything with prose: sources, scripts, definitions and documents.
const std::vector<Source>& Texts() {
  static const std::vector<Source> texts = FilesThatEndIn(
      {".h", ".hpp", ".cc", ".c", ".cu", ".py", ".proto", ".sh", ".cmake", ".md", ".toml"});
  return texts;
}

/// Characters, not bytes: continuation bytes of UTF-8 do not count.
size_t WidthOf(const std::string& line) {
  return static_cast<size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

/// The code of a line: no string literals, no comment.
std::string CodeOf(const std::string& line) {
  static const std::regex kStrings(R"("(\\.|[^"\\])*")");
  std::string code = std::regex_replace(line, kStrings, "\"\"");
  return code.substr(0, code.find("//"));
}

/// "file:line: text" for each line whose code matches, outside `allowed` files.
std::vector<std::string> Uses(const std::string& pattern, const std::set<std::string>& allowed) {
  std::vector<std::string> uses;
  std::regex regex(pattern);
  for (const Source& source : Sources()) {
    if (allowed.count(source.path) != 0) continue;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      if (std::regex_search(CodeOf(source.lines[i]), regex)) {
        uses.push_back(source.path + ":" + std::to_string(i + 1) + ": " + source.lines[i]);
      }
    }
  }
  return uses;
}

using Lines = std::vector<std::string>;

TEST(TidyTest, FindsTheTree) { EXPECT_GT(Sources().size(), 30U); }

/// Adds the files of tests, harnesses and benchmarks.
std::set<std::string> WithTests(std::set<std::string> files) {
  for (const Source& source : Sources()) {
    for (const char* folder : {"tests/", "testing/", "bench/"}) {
      if (source.path.starts_with(folder)) files.insert(source.path);
    }
  }
  return files;
}

// The release compiles the files of a room together, the tests only a few at a time.
TEST(TidyTest, ConstantsOfARoomHaveDifferentNames) {
  // Their CMakeLists.txt set smaller groups for the release, too.
  const std::set<std::string> grouped = {"agent/pipeline", "client/core", "coordinator/detect"};
  const std::regex constant(R"(^(?:static )?(?:constexpr|const) [^=({;]*\b(k[A-Z]\w*))");
  std::map<std::string, std::string> first;  // room and name → file
  Lines found;
  size_t count = 0;
  for (const Source& source : Sources()) {
    const fs::path path = source.path;
    const std::string room = path.parent_path();
    const std::string top = *path.begin();
    if (path.extension() != ".cc" || grouped.count(room) != 0) continue;
    if (top == "tests" || top == "testing" || top == "bench") continue;
    for (const std::string& line : source.lines) {
      std::smatch match;
      if (!std::regex_search(line, match, constant)) continue;
      ++count;
      const auto [known, added] = first.emplace(room + " " + match[1].str(), source.path);
      if (!added && known->second != source.path) {
        found.push_back(source.path + ": " + match[1].str() + ", as in " + known->second);
      }
    }
  }
  EXPECT_EQ(found, Lines());
  EXPECT_GT(count, 300U);
}

TEST(TidyTest, EnvironmentIsReadInConfigurationOnly) {
  const std::set<std::string> allowed =
      WithTests({"base/crash_point.cc", "base/service_manager.cc", "client/core/options.cc",
                 "cli/core/options.cc"});
  EXPECT_EQ(Uses(R"(\b(secure_)?getenv\b)", allowed), Lines());
}

TEST(TidyTest, OnlyMainNamesTheRealClock) {
  const std::set<std::string> allowed = WithTests(
      {"base/clock.cc", "agent/arena/keeper_main.cc", "agent/server/main.cc", "cli/main.cc",
       "coordinator/server/main.cc", "deploy/demo/main.cc", "faults/injector/main.cc"});
  EXPECT_EQ(Uses(R"(Clock::Real\(\))", allowed), Lines());
}

TEST(TidyTest, TimePassesOnTheInjectedClock) {
  std::set<std::string> allowed = WithTests({
      "base/clock.cc",
      // The client library runs in processes that it does not own; see client/core/threads.h. Its
      // profiler plugin links nothing of it.
      "client/core/client_restore.cc",
      "client/core/threads.h",
      "client/core/version_reader.cc",
      "client/nccl/profiler.cc",
      // A lease of etcd also runs while the machine sleeps, so etcd's room counts the time since
      // boot; see coordinator/etcd/term.h.
      "coordinator/etcd/etcd_store.cc",
      "deploy/demo/main.cc",
  });
  for (const Source& source : Sources()) {
    // Self-tests measure the hardware. The example trainer uses only the library's interface.
    for (const char* room : {"agent/selftest/", "client/examples/"}) {
      if (source.path.starts_with(room)) allowed.insert(source.path);
    }
  }
  EXPECT_EQ(Uses(R"(steady_clock::now|\bsleep_(for|until)\b|\b(u|nano)?sleep\()", allowed),
            Lines());
}

TEST(TidyTest, NoRawNew) {
  std::vector<std::string> uses = Uses(R"((=|return|\()\s*new\s+[A-Za-z_:<]+)", {});
  // A private constructor leaves no other way to fill a smart pointer.
  std::erase_if(uses, [](const auto& use) { return use.find("_ptr<") != std::string::npos; });
  EXPECT_EQ(uses, Lines());
}

TEST(TidyTest, WallTimeComesFromTheClock) {
  EXPECT_EQ(Uses(R"(system_clock::now|\btime\((nullptr|NULL|0)\)|gettimeofday)", {"base/clock.cc"}),
            Lines());
}

TEST(TidyTest, OnlyTheCliPrints) {
  std::vector<std::string> uses = Uses(R"(std::(cout|cerr)\b)", {});
  std::erase_if(uses, [](const std::string& use) {
    return use.rfind("cli/", 0) == 0 || use.rfind("client/examples/", 0) == 0 ||
           use.rfind("deploy/demo/", 0) == 0 || use.rfind("bench/", 0) == 0;
  });
  EXPECT_EQ(uses, Lines());
}

TEST(TidyTest, OurCodeThrowsNothing) { EXPECT_EQ(Uses(R"(\bthrow\b)", {}), Lines()); }

TEST(TidyTest, LinesAndFilesAreShort) {
  Lines long_ones;
  for (const Source& source : Sources()) {
    if (source.lines.size() > 800) {
      long_ones.push_back(source.path + " has " + std::to_string(source.lines.size()) + " lines");
    }
    for (size_t i = 0; i < source.lines.size(); ++i) {
      const size_t width = WidthOf(source.lines[i]);
      bool unbreakable = source.lines[i].find("http") != std::string::npos ||
                         source.lines[i].find("R\"") != std::string::npos;
      if (width > 100 && !unbreakable) {
        long_ones.push_back(source.path + ":" + std::to_string(i + 1) + " is wide");
      }
    }
  }
  EXPECT_EQ(long_ones, Lines());
}

/// A table's row, a link and what stands in a block of code cannot be broken.
TEST(TidyTest, MarkdownLinesAreShort) {
  Lines wide;
  for (const Source& text : Texts()) {
    if (!text.path.ends_with(".md")) continue;
    bool code = false;
    for (size_t i = 0; i < text.lines.size(); ++i) {
      const std::string& line = text.lines[i];
      const size_t begin = line.find_first_not_of(' ');
      if (begin != std::string::npos && line.compare(begin, 3, "```") == 0) code = !code;
      const bool breakable = !code && begin != std::string::npos && line[begin] != '|' &&
                             line.find("](") == std::string::npos;
      if (breakable && WidthOf(line) > 120) {
        wide.push_back(text.path + ":" + std::to_string(i + 1));
      }
    }
  }
  EXPECT_EQ(wide, Lines());
}

/// The words of a line in lower case, those that an identifier consists of one by one.
std::vector<std::string> WordsOf(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  auto end_word = [&] {
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  auto is = [&](int (*kind)(int), size_t i) {
    return i < line.size() && kind(static_cast<unsigned char>(line[i])) != 0;
  };
  for (size_t i = 0; i < line.size(); ++i) {
    // "aB" is two words, and "ABc" is "a" and "bc".
    const bool begins =
        is(std::isupper, i) && i > 0 && (is(std::islower, i - 1) || is(std::islower, i + 1));
    if (!is(std::isalpha, i) || begins) end_word();
    if (is(std::isalpha, i)) word += static_cast<char>(std::tolower(line[i]));
  }
  end_word();
  return words;
}

/// Words that mean nothing in this field, or that make a person of a program. The terms to use are
/// in docs/glossary.md.
TEST(TidyTest, ProseKeepsToTheFieldsTerms) {
  const std::set<std::string> banned = {
      "told",         "tell",       "tells",       "telling",     "nobody",      "somebody",
      "everybody",    "whoever",    "anew",        "beside",      "mend",        "mends",
      "mended",       "mending",    "wish",        "wishes",      "sight",       "sights",
      "seat",         "seats",      "leg",         "legs",        "holdings",    "overtaken",
      "set aside",    "sets aside", "passed over", "passes over", "bring back",  "brings back",
      "brought back", "say",        "says",        "said",        "saying",      "look at",
      "looks at",     "looked at",  "looking at",  "a look",      "hear",        "hears",
      "heard",        "believe",    "believes",    "believed",    "wants",       "by itself",
      "so many",      "those who",  "lies",        "misbehave",   "misbehaves",  "hurry",
      "gravest",      "comes to",   "stood still", "stand still", "stands still"};
  Lines found;
  for (const Source& text : Texts()) {
    if (text.path == "tests/tidy/tidy_test.cc") continue;
    for (size_t i = 0; i < text.lines.size(); ++i) {
      // The account of the system with this name.
      if (text.lines[i].find("kName = \"nobody\"") != std::string::npos) continue;
      std::string before;
      for (const std::string& word : WordsOf(text.lines[i])) {
        for (const std::string& phrase : {word, before + " " + word}) {
          if (banned.count(phrase) == 0) continue;
          found.push_back(text.path + ":" + std::to_string(i + 1) + ": " + phrase);
        }
        before = word;
      }
    }
  }
  EXPECT_EQ(found, Lines());
}

/// The text of a file of the tree.
std::string TextOf(const std::string& path) {
  std::ifstream file(fs::path(HOLDFAST_SOURCE_DIR) / path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// One group of each match of `pattern` in the sources of the servers.
std::vector<std::string> MatchesInServers(const std::string& pattern, size_t group) {
  std::vector<std::string> found;
  const std::regex regex(pattern);
  for (const Source& source : Sources()) {
    const std::string room = source.path.substr(0, source.path.find('/'));
    if (room != "agent" && room != "base" && room != "coordinator" && room != "storage" &&
        room != "faults") {
      continue;
    }
    std::string text;
    for (const std::string& line : source.lines) text += line + "\n";
    for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match) {
      found.push_back((*match)[group].str());
    }
  }
  return found;
}

TEST(TidyTest, LogEventsAreCamelCaseAndListed) {
  const std::vector<std::string> events =
      MatchesInServers(R"re(\bLog\([^;"]*LogLevel::k\w+,\s*"([^"]*)")re", 1);
  EXPECT_GT(events.size(), 90U);
  const std::regex form("[A-Z][a-z0-9]+([A-Z][a-z0-9]*)*");
  const std::string page = TextOf("docs/log-events.md");
  std::set<std::string> listed;
  const std::regex row("\n\\| `(\\w+)` \\|");
  for (std::sregex_iterator it(page.begin(), page.end(), row), end; it != end; ++it) {
    listed.insert((*it)[1]);
  }
  for (const std::string& event : events) {
    EXPECT_TRUE(std::regex_match(event, form)) << event << " is not in CamelCase";
    EXPECT_TRUE(listed.count(event)) << event << " is not in docs/log-events.md";
  }
  const std::set<std::string> known(events.begin(), events.end());
  for (const std::string& event : listed) {
    EXPECT_TRUE(known.count(event)) << event << " of docs/log-events.md does not exist";
  }
}

TEST(TidyTest, MetricsHavePrefixUnitAndRow) {
  const std::string spec = R"re(MetricSpec k\w+\{\s*"([^"]*)",\s*(?:Metric)?Kind::k(\w+))re";
  const std::vector<std::string> names = MatchesInServers(spec, 1);
  const std::vector<std::string> kinds = MatchesInServers(spec, 2);
  EXPECT_GT(names.size(), 50U);
  const std::regex form("holdfast(_[a-z0-9]+)+");
  // Prometheus' base units are seconds and bytes, and shares are ratios.
  const std::regex other_unit(
      ".*_(ms|us|ns|millis|nanos|minutes|hours|kb|mb|gb|kib|mib|gib|percent|pct)(_total)?");
  const std::regex summary_unit(".*_(seconds|bytes|steps)");
  const std::string page = TextOf("docs/metrics.md");
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    EXPECT_TRUE(std::regex_match(name, form)) << name;
    EXPECT_FALSE(std::regex_match(name, other_unit)) << name << ": use seconds, bytes or ratio";
    EXPECT_EQ(kinds[i] == "Counter", name.ends_with("_total")) << name;
    if (kinds[i] == "Summary") {
      EXPECT_TRUE(std::regex_match(name, summary_unit)) << name;
    }
    EXPECT_NE(page.find("| `" + name + "` |"), std::string::npos)
        << name << " is not in docs/metrics.md";
  }
}

TEST(TidyTest, HeadersAreGuardedOnce) {
  Lines bare;
  for (const Source& source : Sources()) {
    if (source.path.ends_with(".h") || source.path.ends_with(".hpp")) {
      bool guarded = std::any_of(source.lines.begin(), source.lines.end(), [](const auto& line) {
        return line == "#pragma once" || line.rfind("#ifndef HOLDFAST_", 0) == 0;
      });
      if (!guarded) bare.push_back(source.path);
    }
  }
  EXPECT_EQ(bare, Lines());
}

/// Room of a path: "storage/io" of "storage/io/x.h", "base" of "base/status.h".
std::string RoomOf(const std::string& path) {
  size_t first = path.find('/');
  size_t second = first == std::string::npos ? first : path.find('/', first + 1);
  if (second != std::string::npos) return path.substr(0, second);
  const std::string folder = first == std::string::npos ? "" : path.substr(0, first);
  return folder == "base" || folder == "cli" ? folder : "";
}

/// Room → rooms that it may use, as CMakeLists.txt files declare them.
std::map<std::string, std::set<std::string>> DeclaredRooms() {
  std::map<std::string, std::set<std::string>> rooms;
  std::ifstream file(HOLDFAST_ROOMS_FILE);
  for (std::string line; std::getline(file, line);) {
    std::istringstream uses(line.substr(line.find(':') + 1));
    std::set<std::string>& declared = rooms[line.substr(0, line.find(':'))];
    for (std::string room; uses >> room;) declared.insert(room);
  }
  return rooms;
}

TEST(TidyTest, EachRoomIncludesOnlyRoomsThatItDeclares) {
  const auto declared = DeclaredRooms();
  const std::regex include(
      R"re(^#include "((base|storage|agent|coordinator|client|cli|faults|testing)/[^"]+)")re");
  Lines wrong;
  for (const Source& source : Sources()) {
    const std::string room = RoomOf(source.path);
    // Tests and benchmarks may include any room.
    if (room.empty() || room.rfind("tests/", 0) == 0 || room.rfind("bench", 0) == 0) continue;
    if (room == "client/include") continue;
    auto uses = declared.find(room);
    if (uses == declared.end()) {
      wrong.push_back(source.path + " is in no declared room");
      continue;
    }
    for (const std::string& line : source.lines) {
      std::smatch match;
      if (!std::regex_search(line, match, include)) continue;
      const std::string used = RoomOf(match[1]);
      if (used != room && uses->second.count(used) == 0) {
        wrong.push_back(source.path + " includes " + match[1].str());
      }
    }
  }
  EXPECT_EQ(wrong, Lines());
}

/// The room and all rooms that it uses, directly or through others.
std::set<std::string> ReachedFrom(const std::string& room,
                                  const std::map<std::string, std::set<std::string>>& declared) {
  std::set<std::string> reached = {room};
  for (size_t before = 0; before != reached.size();) {
    before = reached.size();
    for (const std::string& one : std::set<std::string>(reached)) {
      const auto uses = declared.find(one);
      if (uses != declared.end()) reached.insert(uses->second.begin(), uses->second.end());
    }
  }
  return reached;
}

TEST(TidyTest, NothingThatRunsInProductionReachesFaults) {
  const auto declared = DeclaredRooms();
  Lines reaching;
  for (const auto& [room, uses] : declared) {
    if (room.rfind("agent/", 0) != 0 && room.rfind("coordinator/", 0) != 0 &&
        room.rfind("client/", 0) != 0 && room.rfind("storage/", 0) != 0) {
      continue;
    }
    for (const std::string& used : ReachedFrom(room, declared)) {
      if (used.rfind("faults/", 0) == 0) reaching.push_back(room + " reaches " + used);
    }
  }
  EXPECT_EQ(reaching, Lines());
  EXPECT_EQ(ReachedFrom("cli", declared).count("faults/drill"), 1U);
  EXPECT_EQ(ReachedFrom("cli", declared).count("faults/injector"), 0U);
}

TEST(TidyTest, RoomsDependInOneDirection) {
  const auto declared = DeclaredRooms();
  ASSERT_GT(declared.size(), 20U);
  std::set<std::string> placed;
  // Each round places the rooms whose dependencies are placed; a cycle is never placed.
  for (;;) {
    const size_t before = placed.size();
    for (const auto& [room, uses] : declared) {
      const bool ready = std::all_of(uses.begin(), uses.end(), [&](const std::string& used) {
        return placed.count(used) != 0;
      });
      if (ready) placed.insert(room);
    }
    if (placed.size() == before) break;
  }
  Lines left;
  for (const auto& [room, uses] : declared) {
    if (placed.count(room) == 0) left.push_back(room);
  }
  EXPECT_EQ(left, Lines());
}

TEST(TidyTest, EveryRoomHasAReadme) {
  Lines without;
  std::set<std::string> rooms;
  for (const Source& source : Sources()) {
    std::string room = RoomOf(source.path);
    if (!room.empty() && room.rfind("tests/", 0) != 0 && room.rfind("client/include", 0) != 0) {
      rooms.insert(room);
    }
  }
  for (const std::string& room : rooms) {
    if (!fs::exists(fs::path(HOLDFAST_SOURCE_DIR) / room / "README.md")) without.push_back(room);
  }
  EXPECT_EQ(without, Lines());
}

}  // namespace
}  // namespace holdfast
