#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/core/command.h"
#include "cli/offline/data_dirs.h"

// The checks of `verify`, online and offline, and their results.

namespace holdfast::cli {

enum class Verdict {
  kOk,
  kDamaged,    // bytes or structure do not match
  kMissing,    // should exist and does not
  kUnchecked,  // could not be checked: no answer, no permission, a newer format
  kReplaced,   // replaced by newer versions during the check: not a problem
};

/// One replica of one shard, and the result of its check.
struct ShardCheck {
  ShardKey key;
  Tier tier = Tier::kDisk;
  std::string node;     // or the data directory
  std::string address;  // online only
  uint64_t bytes = 0;
  Verdict verdict = Verdict::kOk;
  std::string message;
  bool decodable = false;  // when missing: can be decoded from its parity group
  uint64_t digest = 0;     // of its seal; 0: not read
};

struct CheckOptions {
  std::string job;                   // empty: all
  std::optional<VersionId> version;  // empty: all
  bool deep = false;
  double share = 1;
};

/// The results, and notes on versions that cannot be checked completely.
struct CheckReport {
  std::vector<ShardCheck> checks;
  uint64_t left_out = 0;            // not in the sample
  std::vector<ShardCheck> missing;  // collected here first, moved to `checks` at the end
  std::vector<std::string> notes;
  uint32_t committed = 0;  // versions whose shards are the committed ones; see commit_check.h
  std::vector<std::string> contradictions;  // one text for each version whose shards are not
  bool partial = false;                     // a committed shard could not be checked
};

Result<CheckReport> CheckOnline(Context& context, const CheckOptions& options);
Result<CheckReport> CheckOffline(Context& context, const CheckOptions& options,
                                 const std::vector<std::string>& dirs);

/// Keeps a random share of the report's `checks`, at least one, in their order.
void TakeSample(double share, CheckReport& report);

}  // namespace holdfast::cli
