#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/data_dirs.h"

// What `verify` checks and how it tells, online and offline.

namespace holdfast::cli {

enum class Verdict {
  kOk,
  kDamaged,    // bytes or structure do not match
  kMissing,    // should be there and is not
  kUnchecked,  // could not be looked at: no answer, no permission, a newer format
  kGone,       // replaced by newer versions while we looked; nothing is wrong
};

/// One copy of one shard, and what was found of it.
struct ShardCheck {
  ShardKey key;
  Tier tier = Tier::kDisk;
  std::string node;     // or the data directory
  std::string address;  // online only
  uint64_t bytes = 0;
  Verdict verdict = Verdict::kOk;
  std::string message;
  bool decodable = false;  // of a missing one: its parity group gives it back
};

struct CheckOptions {
  std::string job;    // empty: all
  VersionId version;  // 0-0: all
  bool deep = false;
  double share = 1;
};

/// Things beside single shards: versions that cannot be looked at whole.
struct CheckReport {
  std::vector<ShardCheck> checks;
  uint64_t left_out = 0;  // not in the sample
  std::vector<ShardCheck> missing;  // while they are collected; in `checks` in the end
  std::vector<std::string> notes;
  bool partial = false;  // something committed could not be looked at
};

Result<CheckReport> CheckOnline(Context& context, const CheckOptions& options);
Result<CheckReport> CheckOffline(Context& context, const CheckOptions& options,
                                 const std::vector<std::string>& dirs);

/// Keeps a random share of `checks`, at least one, in their order.
void TakeSample(double share, CheckReport& report);

}  // namespace holdfast::cli
