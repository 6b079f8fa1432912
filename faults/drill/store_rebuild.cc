#include "faults/drill/store_rebuild.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include "cli/core/interrupt.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"
#include "cli/shards/shard_check.h"
#include "coordinator/api/run_convert.h"
#include "coordinator/store/record_codec.h"

namespace holdfast::faults {
using cli::DeferInterrupt;
using cli::Interrupt;
using cli::Printable;
using cli::ShardCheck;
using cli::Verdict;
using coord::AnyVersion;
using coord::FromProto;
namespace {
constexpr std::chrono::milliseconds kPoll(50);
constexpr size_t kNameBytes = 16'384;
/// Agents describe their parity groups to a coordinator of a new life within two seconds.
constexpr int64_t kAdoptedMs = 4000;

/// Finds the records of a job's run and versions in a backup.
class JobRecords : public cli::BackupSink {
 public:
  explicit JobRecords(const std::string& job)
      : run_key_(coord::RunKey(job)), versions_(std::string(coord::kVersionPrefix) + job + "/") {}
  Status Take(coordinator::BackupPart& part) override {
    for (const auto& one : part.entries()) {
      if (one.key() == run_key_) {
        HOLDFAST_ASSIGN_OR_RETURN(run_, coord::DecodeRun(one.key(), one.value()));
      } else if (one.key().starts_with(versions_)) {
        HOLDFAST_ASSIGN_OR_RETURN(auto version, coord::DecodeVersion(one.key(), one.value()));
        digests_[version.version] = std::move(version.digests);
      }
    }
    return Status::Ok();
  }
  const std::optional<coord::RunRecord>& run() const { return run_; }
  /// Returns the digests of each version, by rank; none: the version was not committed.
  const std::map<VersionId, std::vector<uint64_t>>& digests() const { return digests_; }

 private:
  const std::string run_key_;
  const std::string versions_;
  std::optional<coord::RunRecord> run_;
  std::map<VersionId, std::vector<uint64_t>> digests_;
};

/// Returns the name of a user of this machine, or the number.
std::string UserName(uint32_t uid) {
  std::array<char, kNameBytes> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  ::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found);
  return found == nullptr ? std::to_string(uid) : found->pw_name;
}

}  // namespace

/// Waits. Returns false at the second signal: the first one only ends the wait for a new version.
bool StoreRebuild::Wait() {
  context_.clock.SleepFor(kPoll);
  return !Interrupt::requested();
}

Status StoreRebuild::Record() {
  HOLDFAST_ASSIGN_OR_RETURN(const auto status, client_.GetStatus(job_));
  life_ = LifeId{status.life()};
  owner_ = status.jobs(0).uid();
  newest_step_ = status.jobs(0).newest_seen_step();
  return RecordVersions();
}

Status StoreRebuild::RecordVersions() {
  JobRecords records(job_);
  HOLDFAST_RETURN_IF_ERROR(client_.Backup(records));
  if (!records.run()) return NotFoundError("the store has no run of job '" + job_ + "'");
  const RunSpec& spec = records.run()->spec;
  coord::ToProto(spec, &run_);
  // The caller is the user of the workers, unless an operator names another one.
  run_.clear_run_as();
  if (spec.uid && *spec.uid != ::geteuid()) run_.set_run_as(UserName(*spec.uid));
  for (const auto& [version, digests] : records.digests()) {
    if (!digests.empty()) before_[version] = digests;
  }
  return Status::Ok();
}

Result<StoreRebuild::Digests> StoreRebuild::DigestsOf(VersionId version) {
  HOLDFAST_ASSIGN_OR_RETURN(const auto plan, client_.PlanRestore(job_, version, 0));
  Digests digests;  // there is one source for each rank, in order
  for (const auto& source : plan.sources()) digests.push_back(source.digest());
  return digests;
}

void StoreRebuild::Follow(const DrillPlan& plan, const std::function<int64_t()>& since,
                          int64_t give_up_ms, DrillReport* report) {
  since_ = since;
  give_up_ms_ = give_up_ms;
  report_ = report;
  if (!AwaitNodes(plan)) {
    report_->notes.push_back(fmt::format(
        "no coordinator with an empty store and all nodes within {} s", give_up_ms_ / 1000));
    return;
  }
  report_->decide_ms = since_();
  Adopt();
  report_->restore_ms = since_();
  Compare();
  const Status started = StartRun();
  if (!started.ok()) {
    report_->notes.push_back("the run was not started again: " + started.message());
    return;
  }
  AwaitCommit();
}

bool StoreRebuild::AwaitNodes(const DrillPlan& plan) {
  do {
    const auto status = client_.GetStatus("");
    if (status && LifeId{status->life()} == life_) {
      for (const auto& job : status->jobs()) {
        if (job.job() == job_) newest_step_ = std::max(newest_step_, job.newest_seen_step());
      }
      static_cast<void>(RecordVersions().ok());  // fails when the fault begins
      continue;
    }
    if (!report_->detect_ms) report_->detect_ms = std::max<int64_t>(since_(), 0);
    if (!status) continue;
    std::set<std::string> alive;
    for (const auto& node : status->nodes()) {
      if (node.alive()) alive.insert(node.node());
    }
    const bool all = std::all_of(plan.agents.begin(), plan.agents.end(),
                                 [&](const auto& agent) { return alive.contains(agent.first); });
    if (all) return true;
  } while (Wait() && InTime());
  return false;
}

void StoreRebuild::Adopt() {
  int64_t last = since_();
  do {
    const auto reply = client_.Adopt(job_, life_, /*dry_run=*/false, owner_);
    if (!reply) continue;  // the replicas of no version have been reported yet
    for (const auto& one : reply->versions()) {
      const VersionId version = FromProto(one.version());
      if (!one.why_not().empty()) {
        refused_[version] = one.why_not();
      } else if (adopted_.insert(version).second) {
        refused_.erase(version);
        last = since_();
        // Retention must not remove the version before its bytes are compared.
        static_cast<void>(client_.Pin(job_, version, true).ok());
        pinned_.insert(version);
      }
    }
  } while (since_() - last < kAdoptedMs && Wait() && InTime());
  for (const VersionId version : adopted_) report_->survived.push_back(version);
  for (const auto& [version, why] : refused_) {
    report_->notes.push_back(
        Printable(fmt::format("{} did not survive: {}", ToString(version), why)));
  }
}

std::string StoreRebuild::Difference(VersionId version, const Digests& before) {
  const auto now = DigestsOf(version);
  if (!now) return now.error().message();
  const auto checked = cli::CheckOnline(context_, {job_, version, /*deep=*/true, 1});
  if (!checked) return checked.error().message();
  for (const ShardCheck& check : checked->checks) {
    const bool missing = check.verdict == Verdict::kMissing && !check.decodable;
    if (check.verdict != Verdict::kDamaged && !missing) continue;
    return ToString(check.key) + ": " + check.message;
  }
  return *now == before ? "" : "its digests are not those before the fault";
}

void StoreRebuild::Compare() {
  size_t equal = 0;
  bool differ = false;
  for (const VersionId version : adopted_) {
    const auto before = before_.find(version);
    // Completed by the nodes after the record; without a coordinator, they go on saving.
    if (before == before_.end()) continue;
    const auto still = DigestsOf(version);
    if (!still && still.error().code() == ErrorCode::kNotFound) {
      report_->notes.push_back(
          fmt::format("{} was adopted, and retention removed it before its "
                      "bytes could be compared",
                      ToString(version)));
      continue;
    }
    const std::string difference = Difference(version, before->second);
    if (difference.empty()) {
      ++equal;
      continue;
    }
    differ = true;
    report_->notes.push_back(
        Printable(fmt::format("bytes of {}: {}", ToString(version), difference)));
  }
  if (equal != 0) report_->bytes = BytesVerdict::kEqual;
  if (differ || adopted_.empty()) report_->bytes = BytesVerdict::kDiffer;
  report_->notes.push_back(fmt::format("{} adopted, {} of them compared byte by byte and equal",
                                       Count(adopted_.size(), "version"), equal));
}

/// Starts the run again. The workers of the lost run may still be ending.
Status StoreRebuild::StartRun() {
  Status status = UnavailableError("interrupted");
  do {
    status = client_.StartRun(run_);
    if (!status.ok()) continue;
    const auto seen = client_.GetStatus(job_);
    if (!seen) return seen.error();
    report_->restored = AnyVersion(seen->jobs(0).restorable());
    const uint64_t from = report_->restored ? report_->restored->step.value : 0;
    report_->lost_steps =
        std::max<int64_t>(static_cast<int64_t>(newest_step_) - static_cast<int64_t>(from), 0);
    return Status::Ok();
  } while (Wait() && InTime());
  return status;
}

void StoreRebuild::AwaitCommit() {
  while (InTime() && !DeferInterrupt::seen() && Wait()) {
    const auto status = client_.GetStatus(job_);
    if (!status) continue;
    const auto runs = client_.GetRuns(job_);
    if (!runs || runs->runs_size() != 1 || runs->runs(0).incarnation() == 0) continue;
    const std::optional<VersionId> committed = AnyVersion(status->jobs(0).memory_committed());
    if (!committed || committed->incarnation.value < runs->runs(0).incarnation()) continue;
    report_->recover_ms = since_();
    return;
  }
  report_->notes.push_back(fmt::format("no new version within {} s", give_up_ms_ / 1000));
}

}  // namespace holdfast::faults
