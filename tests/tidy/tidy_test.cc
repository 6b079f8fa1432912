// The style rules that a machine can check, over every source file of the tree.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace holdfast {
namespace {
namespace fs = std::filesystem;

struct Source {
  std::string path;  // from the root
  std::vector<std::string> lines;
};

const std::vector<Source>& Sources() {
  static const std::vector<Source> sources = [] {
    std::vector<Source> found;
    fs::path root = HOLDFAST_SOURCE_DIR;
    for (const char* room :
         {"storage", "agent", "coordinator", "client", "tests", "bench", "deploy"}) {
      if (!fs::exists(root / room)) continue;
      for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
        static const std::set<std::string> kEndings = {".h", ".hpp", ".cc", ".c", ".cu"};
        if (!entry.is_regular_file() || kEndings.count(entry.path().extension()) == 0) continue;
        Source source{fs::relative(entry.path(), root), {}};
        std::ifstream file(entry.path());
        for (std::string line; std::getline(file, line);) source.lines.push_back(line);
        found.push_back(std::move(source));
      }
    }
    return found;
  }();
  return sources;
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

TEST(TidyTest, EnvironmentIsReadInConfigurationOnly) {
  // Configuration of each program and library, and what runs tests.
  std::set<std::string> allowed = {"storage/base/crash_point.cc", "client/core/options.cc",
                                   "client/cli/options.cc", "deploy/local/process.cc",
                                   "deploy/local/cluster.cc"};
  for (const Source& source : Sources()) {
    if (source.path.rfind("tests/", 0) == 0 || source.path.rfind("bench/", 0) == 0) {
      allowed.insert(source.path);
    }
  }
  EXPECT_EQ(Uses(R"(\b(secure_)?getenv\b)", allowed), Lines());
}

TEST(TidyTest, NoRawNew) {
  std::vector<std::string> uses = Uses(R"((=|return|\()\s*new\s+[A-Za-z_:<]+)", {});
  // A private constructor leaves no other way to fill a smart pointer.
  std::erase_if(uses, [](const auto& use) { return use.find("_ptr<") != std::string::npos; });
  EXPECT_EQ(uses, Lines());
}

TEST(TidyTest, WallTimeComesFromTheClock) {
  EXPECT_EQ(Uses(R"(system_clock::now|\btime\((nullptr|NULL|0)\)|gettimeofday)",
                 {"storage/base/clock.cc"}),
            Lines());
}

TEST(TidyTest, OnlyTheCliPrints) {
  std::vector<std::string> uses = Uses(R"(std::(cout|cerr)\b)", {});
  std::erase_if(uses, [](const std::string& use) {
    return use.rfind("client/cli/", 0) == 0 || use.rfind("client/examples/", 0) == 0 ||
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
      // Characters, not bytes: continuation bytes of UTF-8 do not count.
      auto width = std::count_if(source.lines[i].begin(), source.lines[i].end(),
                                 [](char c) { return (c & 0xC0) != 0x80; });
      bool unbreakable = source.lines[i].find("http") != std::string::npos ||
                         source.lines[i].find("R\"") != std::string::npos;
      if (width > 100 && !unbreakable) {
        long_ones.push_back(source.path + ":" + std::to_string(i + 1) + " is wide");
      }
    }
  }
  EXPECT_EQ(long_ones, Lines());
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

/// Room of a path: "storage/io" of "storage/io/x.h", and of an include of it.
std::string RoomOf(const std::string& path) {
  size_t first = path.find('/');
  size_t second = first == std::string::npos ? first : path.find('/', first + 1);
  return second == std::string::npos ? "" : path.substr(0, second);
}

TEST(TidyTest, DependenciesOnlyPointDown) {
  const std::set<std::string> storage = {"storage/base", "storage/format", "storage/erasure",
                                         "storage/io",   "storage/parity", "storage/volume"};
  auto with = [](std::set<std::string> base, std::initializer_list<std::string> more) {
    base.insert(more);
    return base;
  };
  const std::map<std::string, std::set<std::string>> may_include = {
      {"storage/base", {}},
      {"storage/format", {"storage/base"}},
      {"storage/erasure", {"storage/base"}},
      {"storage/io", {"storage/base", "storage/format"}},
      {"storage/parity", {"storage/base", "storage/format", "storage/erasure"}},
      {"storage/volume", {"storage/base", "storage/format", "storage/io"}},
      {"agent/api", {"storage/base"}},
      {"agent/arena", {"storage/base", "storage/format", "agent/api"}},
      {"agent/telemetry", {"storage/base", "agent/api"}},
      {"agent/peers", {"storage/base", "storage/format"}},
      {"agent/parity",
       {"storage/base", "storage/format", "storage/erasure", "storage/parity", "agent/peers"}},
      {"agent/pipeline", with(storage, {"agent/api", "agent/arena", "agent/telemetry",
                                        "agent/peers", "agent/parity"})},
      {"agent/selftest", {"storage/base", "storage/format", "storage/io", "storage/volume"}},
      {"agent/workers", {"storage/base", "agent/api"}},
      {"agent/faults", {"storage/base", "agent/api", "agent/workers", "coordinator/hand"}},
      {"agent/server",
       with(storage, {"agent/api", "agent/arena", "agent/peers", "agent/pipeline",
                      "agent/telemetry", "agent/workers", "agent/faults", "coordinator/api",
                      "coordinator/hand", "coordinator/metrics"})},
      {"coordinator/detect", {"storage/base"}},
      {"coordinator/api", {"storage/base", "storage/format"}},
      {"coordinator/hand", {"storage/base"}},
      {"coordinator/metrics", {"storage/base", "coordinator/api"}},
      {"coordinator/state", {"storage/base", "storage/format", "coordinator/api"}},
      {"coordinator/restart", {"storage/base", "coordinator/api", "coordinator/state"}},
      {"coordinator/store", {"storage/base", "storage/format", "coordinator/state"}},
      {"coordinator/server",
       {"storage/base", "storage/format", "coordinator/api", "coordinator/state",
        "coordinator/store", "coordinator/metrics", "coordinator/detect", "coordinator/restart",
        "coordinator/hand"}},
      {"client/core", {"storage/base", "storage/format", "agent/api"}},
      {"client/cuda", {"storage/base", "client/core"}},
      {"client/nccl", {}},
      {"client/python", {}},
      {"client/cli", with(storage, {"coordinator/api", "agent/api", "agent/selftest"})},
      {"client/examples", {}},
      {"deploy/local", {"storage/base", "agent/api"}},
      {"deploy/demo", {"storage/base", "deploy/local"}},
  };
  const std::regex include(R"re(^#include "((storage|agent|coordinator|client|deploy)/[^"]+)")re");
  Lines wrong;
  for (const Source& source : Sources()) {
    auto allowed = may_include.find(RoomOf(source.path));
    if (allowed == may_include.end()) continue;  // tests and benchmarks may look anywhere
    for (const std::string& line : source.lines) {
      std::smatch match;
      if (!std::regex_search(line, match, include)) continue;
      std::string room = RoomOf(match[1]);
      if (room != allowed->first && allowed->second.count(room) == 0) {
        wrong.push_back(source.path + " includes " + match[1].str());
      }
    }
  }
  EXPECT_EQ(wrong, Lines());
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
