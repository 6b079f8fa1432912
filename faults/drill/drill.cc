#include "faults/drill/drill.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cli/core/options.h"
#include "cli/core/text.h"

namespace holdfast::faults {
using cli::FormatSeconds;
using cli::Join;
using cli::ParseDurationMs;
using cli::Printable;
namespace {

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

template <typename Number>
bool ReadNumber(const std::string& text, Number* number) {
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, *number);
  return read.ec == std::errc() && read.ptr == end && *number >= 0;
}
}  // namespace

const std::vector<DrillTraits>& AllDrills() {
  static const std::vector<DrillTraits> drills = {
      {DrillKind::kKillRank, "kill-rank", true, false, true, true, 0},
      {DrillKind::kHangRank, "hang-rank", true, false, true, true, 60'000},
      {DrillKind::kSlowRank, "slow-rank", true, false, false, false, 30'000},
      {DrillKind::kKillAgent, "kill-agent", false, true, false, true, 2000},
      {DrillKind::kKillNode, "kill-node", false, true, true, true, 8000},
      {DrillKind::kKillCoordinator, "kill-coordinator", false, false, false, true, 2000},
      {DrillKind::kCorruptShard, "corrupt-shard", true, false, false, true, 0},
      {DrillKind::kFillDisk, "fill-disk", false, true, false, false, 15'000},
      {DrillKind::kPowerLoss, "power-loss", false, false, true, true, 2000},
      {DrillKind::kPartition, "partition", false, true, true, false, 10'000},
      {DrillKind::kSlowLink, "slow-link", false, true, false, false, 30'000},
      {DrillKind::kLoseStore, "lose-store", false, false, true, false, 2000},
  };
  return drills;
}

const DrillTraits& TraitsOf(DrillKind kind) { return AllDrills()[static_cast<size_t>(kind)]; }

Result<DrillKind> ParseDrillKind(const std::string& name) {
  std::vector<std::string> names;
  for (const DrillTraits& traits : AllDrills()) {
    if (name == traits.name) return traits.kind;
    names.emplace_back(traits.name);
  }
  return Fail(InvalidArgumentError("there is no drill '" + Printable(name) + "': use one of " +
                                   Join(names, ", ") + ", or random"));
}

Result<DrillTarget> ParseDrillTarget(const std::vector<std::string>& words) {
  DrillTarget target;
  if (words.empty()) return target;
  if (words.size() == 2 && words[0] == "rank") {
    uint32_t rank = 0;
    if (ReadNumber(words[1], &rank) && RankInWorld(Rank{rank}, kWorldMax)) {
      target.rank = rank;
      return target;
    }
    return Fail(InvalidArgumentError("'" + Printable(words[1]) + "' is not a rank"));
  }
  const auto is_node = [](const std::string& word) {
    return word != "rank" && ValidateName("node", word).ok();
  };
  const std::vector<std::string> nodes =
      words.size() == 1 ? Split(words[0], ',') : std::vector<std::string>();
  if (std::all_of(nodes.begin(), nodes.end(), is_node) &&
      (nodes.size() == 1 || (nodes.size() == 2 && nodes[0] != nodes[1]))) {
    target.node = nodes[0];
    if (nodes.size() == 2) target.peer = nodes[1];
    return target;
  }
  return Fail(InvalidArgumentError("cannot use the target '" + Printable(Join(words, " ")) +
                                   "': write `--target rank 3`, `--target n2` or, for the link "
                                   "between two nodes, `--target n1,n2`"));
}

Result<DrillObjective> ParseDrillObjective(const std::string& text) {
  DrillObjective objective;
  const auto wrong = [&](const std::string& part, const std::string& why) {
    return Fail(InvalidArgumentError(
        fmt::format("objective '{}': {}; write e.g. detect=10s,recover=60s,lost-steps=1",
                    Printable(part), why)));
  };
  if (text.empty()) return objective;
  for (const std::string& part : Split(text, ',')) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos) return wrong(part, "it has no value");
    const std::string key = part.substr(0, equals);
    const std::string value = part.substr(equals + 1);
    if (key == "lost-steps") {
      int64_t steps = 0;
      if (objective.lost_steps) return wrong(part, "lost-steps is given twice");
      if (!ReadNumber(value, &steps)) {
        return wrong(part, "lost-steps must be a number of at least 0");
      }
      objective.lost_steps = steps;
    } else if (key == "detect" || key == "recover") {
      std::optional<int64_t>& limit = key == "detect" ? objective.detect_ms : objective.recover_ms;
      if (limit) return wrong(part, key + " is given twice");
      const Result<int64_t> ms = ParseDurationMs(value);
      if (!ms) return wrong(part, ms.error().message());
      limit = *ms;
    } else {
      return wrong(part, "the objectives are detect, recover and lost-steps");
    }
  }
  return objective;
}

void Judge(const DrillObjective& objective, DrillReport* report) {
  const auto time = [report](const char* name, std::optional<int64_t> ms,
                             std::optional<int64_t> limit) {
    if (!limit) return;
    if (!ms) {
      report->missed.push_back(
          fmt::format("{}: did not happen, at most {} allowed", name, FormatSeconds(*limit)));
    } else if (ms > *limit) {
      report->missed.push_back(fmt::format("{}: {} instead of at most {}", name, FormatSeconds(ms),
                                           FormatSeconds(*limit)));
    }
  };
  time("detect", report->detect_ms, objective.detect_ms);
  time("recover", report->recover_ms, objective.recover_ms);
  if (!report->recover_ms && !objective.recover_ms) {
    report->missed.emplace_back("recover: the job did not recover");
  }
  if (objective.lost_steps && !report->lost_steps) {
    report->missed.emplace_back("lost-steps: unknown");
  } else if (objective.lost_steps && *report->lost_steps > *objective.lost_steps) {
    report->missed.push_back(fmt::format("lost-steps: {} instead of at most {}",
                                         *report->lost_steps, *objective.lost_steps));
  }
  if (report->bytes == BytesVerdict::kDiffer) {
    report->missed.emplace_back("bytes: the restored version differs from the saved one");
  }
}

}  // namespace holdfast::faults
