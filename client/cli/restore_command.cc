#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>

#include "client/cli/agent_client.h"
#include "client/cli/command.h"
#include "client/cli/coordinator_client.h"
#include "client/cli/data_dirs.h"
#include "client/cli/parallel.h"
#include "client/cli/progress.h"
#include "client/cli/shard_file.h"
#include "client/cli/text.h"
#include "client/cli/version_json.h"
#include "storage/base/config.h"
#include "storage/base/mutex.h"

namespace holdfast::cli {

namespace {

constexpr const char* kRestoreFooter = R"(
Writes each rank's shard as a plain safetensors file, rank-00000-of-00004.safetensors, into a new or
empty directory. Every chunk is checked against its checksum; files appear under their names only
when all are complete and synced. A damaged or lost copy is replaced by one of another tier. The
running job is not touched.

Examples:
  holdfast restore my-job --to ./out --dry-run           where would each shard come from?
  holdfast restore my-job --to ./out                     the newest version that can be restored
  holdfast restore my-job --to ./out --version 3-120 --tier disk --yes
  holdfast restore my-job --to ./out --from-data-dir /nvme0/hf /nvme1/hf    without any service
)";

/// Shards read at the same time.
constexpr size_t kShardsAtOnce = 4;

/// One shard of the plan, and the copy it is read from.
struct ShardSource {
  ExpectedShard expected;
  Tier tier = Tier::kDisk;
  std::string node;  // or the data directory
  std::string address;
  std::vector<size_t> volumes;  // offline: who holds it
};

/// Everything that will be written, fixed before the first byte is.
struct RestorePlan {
  std::string job;
  VersionId version;
  uint32_t world = 0;
  std::vector<ShardSource> shards;  // by rank

  uint64_t bytes() const {
    uint64_t total = 0;
    for (const ShardSource& shard : shards) total += shard.expected.image_bytes;
    return total;
  }
};

ShardSource FromProto(const RestorePlan& plan, const coordinator::ShardSource& source) {
  ShardSource shard;
  shard.expected = {{plan.job, plan.version, Rank{source.rank()}},
                    plan.world,
                    source.image_bytes(),
                    source.digest()};
  shard.tier = static_cast<Tier>(source.tier());
  shard.node = source.node();
  shard.address = source.address();
  return shard;
}

/// Where shards come from. ReadShard may be called by several threads at once.
class RestoreSource {
 public:
  virtual ~RestoreSource() = default;
  virtual Result<RestorePlan> Plan(const std::string& job, VersionId version) = 0;
  /// Brings one shard into `file`, which is fresh.
  virtual Status ReadShard(const ShardSource& shard, ShardFile& file) = 0;
  /// Another copy of the same shard, when this one failed; NotFound when there is none.
  virtual Result<ShardSource> Another(const ShardSource& failed) = 0;
};

/// Live agents, as the coordinator plans.
class ClusterSource : public RestoreSource {
 public:
  ClusterSource(Context& context, CoordinatorClient& client, uint32_t tier)
      : options_(context.options), client_(client), tier_(tier) {}

  Result<RestorePlan> Plan(const std::string& job, VersionId version) override {
    HOLDFAST_ASSIGN_OR_RETURN(auto reply, client_.PlanRestore(job, version, tier_));
    RestorePlan plan{job, cli::FromProto(reply.version()), reply.world(), {}};
    for (const auto& source : reply.sources()) plan.shards.push_back(FromProto(plan, source));
    return plan;
  }

  Status ReadShard(const ShardSource& shard, ShardFile& file) override {
    HOLDFAST_ASSIGN_OR_RETURN(AgentClient agent,
                              AgentClient::Open(shard.node, shard.address, options_));
    return agent.ReadShard(shard.expected.key, shard.tier, file);
  }

  Result<ShardSource> Another(const ShardSource& failed) override {
    const ExpectedShard& wanted = failed.expected;
    for (Tier tier : {Tier::kMemory, Tier::kPeer, Tier::kDisk, Tier::kRemote}) {
      if (tier <= failed.tier || tier_ != 0) continue;
      auto reply =
          client_.PlanRestore(wanted.key.job, wanted.key.version, static_cast<uint32_t>(tier));
      if (!reply || wanted.key.rank.value >= static_cast<uint32_t>(reply->sources_size())) continue;
      RestorePlan plan{wanted.key.job, wanted.key.version, wanted.world, {}};
      ShardSource other = FromProto(plan, reply->sources(static_cast<int>(wanted.key.rank.value)));
      if (other.expected.digest == wanted.digest) return other;
    }
    return Fail(NotFoundError("no other copy"));
  }

 private:
  const GlobalOptions& options_;
  CoordinatorClient& client_;
  const uint32_t tier_;
};

/// Data directories on this machine, as they lie.
class DataDirSource : public RestoreSource {
 public:
  explicit DataDirSource(std::vector<OfflineVolume> volumes) : volumes_(std::move(volumes)) {}

  Result<RestorePlan> Plan(const std::string& job, VersionId wanted) override {
    HOLDFAST_ASSIGN_OR_RETURN(std::vector<OfflineVersion> versions, VersionsOf(volumes_, job));
    const OfflineVersion* chosen = nullptr;
    for (const OfflineVersion& version : versions) {
      bool fits = wanted == VersionId{} ? version.complete() : version.version == wanted;
      if (fits && chosen == nullptr) chosen = &version;
    }
    if (chosen == nullptr) return Fail(NothingToRestore(job, wanted, versions));
    if (!chosen->complete()) {
      return Fail(NotFoundError(
          fmt::format("{}/{} is not whole here: ranks {} are missing of a world of {}; give the "
                      "data directories of all nodes",
                      job, ToString(chosen->version), MissingRanks(*chosen), chosen->world)));
    }
    RestorePlan plan{job, chosen->version, chosen->world, {}};
    for (const auto& [rank, holders] : chosen->ranks) {
      ShardKey key{job, chosen->version, Rank{rank}};
      HOLDFAST_ASSIGN_OR_RETURN(ShardSource source, SourceOf(key, chosen->world, holders));
      plan.shards.push_back(std::move(source));
    }
    return plan;
  }

  Status ReadShard(const ShardSource& shard, ShardFile& file) override {
    return file.ReadFrom(*volumes_[shard.volumes[0]].volume);
  }

  Result<ShardSource> Another(const ShardSource& failed) override {
    std::vector<size_t> rest(failed.volumes.begin() + 1, failed.volumes.end());
    if (rest.empty()) return Fail(NotFoundError("no other copy"));
    return SourceOf(failed.expected.key, failed.expected.world, rest);
  }

 private:
  static Status NothingToRestore(const std::string& job, VersionId wanted,
                                 const std::vector<OfflineVersion>& versions) {
    if (versions.empty()) return NotFoundError("these data directories hold no shard of " + job);
    if (wanted != VersionId{})
      return NotFoundError("these data directories hold no shard of " + job + "/" +
                           ToString(wanted));
    return NotFoundError(fmt::format(
        "no version of {} is whole here: of the newest, {}, ranks {} are missing; give the data "
        "directories of all nodes",
        job, ToString(versions[0].version), MissingRanks(versions[0])));
  }

  /// The first few, for a message that stays readable with thousands of ranks.
  static std::string MissingRanks(const OfflineVersion& version) {
    std::vector<std::string> missing;
    for (uint32_t rank = 0; rank < version.world; ++rank) {
      if (version.ranks.count(rank) > 0) continue;
      if (missing.size() == 8) {
        missing.emplace_back("…");
        break;
      }
      missing.push_back(std::to_string(rank));
    }
    return Join(missing, ", ");
  }

  Result<ShardSource> SourceOf(const ShardKey& key, uint32_t world,
                               const std::vector<size_t>& holders) const {
    const OfflineVolume& volume = volumes_[holders[0]];
    for (const StoredShard& shard : volume.shards) {
      if (shard.identity.key() != key) continue;
      ShardSource source;
      source.expected = {key, world, shard.image_bytes, shard.digest};
      source.node = volume.dirs[0];
      source.volumes = holders;
      return source;
    }
    return Fail(InternalError("lost sight of " + ToString(key)));
  }

  std::vector<OfflineVolume> volumes_;
};

/// One shard, from its source or, when that fails, from the next, which `shard` then names.
Result<std::unique_ptr<ShardFile>> Fetch(RestoreSource& source, const RestoreTarget& target,
                                         ShardSource& shard, Progress& progress) {
  while (true) {
    HOLDFAST_ASSIGN_OR_RETURN(auto file, ShardFile::Create(target, shard.expected, progress));
    Status status = source.ReadShard(shard, *file);
    if (status.ok()) status = file->Finish();
    if (status.ok()) return file;
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    // A full or broken target would fail with every source.
    bool other_may_help =
        status.code() == ErrorCode::kDataLoss || status.code() == ErrorCode::kNotFound ||
        status.code() == ErrorCode::kUnavailable || status.code() == ErrorCode::kDeadlineExceeded;
    Result<ShardSource> other = Fail(status);
    if (other_may_help) other = source.Another(shard);
    if (!other) return Fail(status);
    progress.Clear();
    Say(Printable(fmt::format("rank {}: the copy at tier {} on {} failed ({}); trying {} on {}",
                              shard.expected.key.rank.value, ToString(shard.tier), shard.node,
                              status.message(), ToString(other->tier), other->node)));
    progress.Retract(file->written_bytes());
    shard = *std::move(other);
  }
}

/// All names or none: what has its name already is taken back when a later one fails.
Status Publish(const RestoreTarget& target, std::vector<std::unique_ptr<ShardFile>>& files) {
  for (auto& file : files) HOLDFAST_RETURN_IF_ERROR(file->Publish());
  HOLDFAST_RETURN_IF_ERROR(target.Sync());
  for (auto& file : files) file->Keep();
  return Status::Ok();
}

class RestoreCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command =
        app.add_subcommand("restore", "Write a version's shards as plain safetensors files");
    command->footer(kRestoreFooter);
    command->add_option("JOB", job_, "The job")->required()->check(NameCheck("job"));
    command->add_option("--to", to_, "A new or empty directory")->type_name("DIR")->required();
    command
        ->add_option("--version", version_, "E.g. 3-120; otherwise the newest that can be restored")
        ->check(VersionCheck());
    CLI::Option* tier =
        command
            ->add_option("--tier", tier_,
                         "Read from this tier alone: memory or disk; otherwise the nearest")
            ->check(TierCheck());
    command->add_flag("--dry-run", dry_run_, "Show the plan and write nothing");
    command->add_flag("-y,--yes", yes_, "Do not ask (a terminal is asked, a script is not)");
    command
        ->add_option("--from-data-dir", dirs_, "Data directories of all nodes: no service is asked")
        ->type_name("DIR")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->excludes(tier);
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    std::unique_ptr<RestoreSource> source;
    std::unique_ptr<CoordinatorClient> client;
    if (dirs_.empty()) {
      HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient opened, CoordinatorClient::Open(context.options));
      client = std::make_unique<CoordinatorClient>(std::move(opened));
      uint32_t tier = tier_.empty() ? 0 : static_cast<uint32_t>(ParseTier(tier_).value_or(Tier{}));
      source = std::make_unique<ClusterSource>(context, *client, tier);
    } else {
      HOLDFAST_ASSIGN_OR_RETURN(std::vector<OfflineVolume> volumes, OpenDataDirs(dirs_));
      source = std::make_unique<DataDirSource>(std::move(volumes));
    }
    HOLDFAST_ASSIGN_OR_RETURN(RestorePlan plan, source->Plan(job_, VersionOf(version_)));
    HOLDFAST_RETURN_IF_ERROR(RestoreTarget::Check(to_, plan.bytes()));
    if (!context.output.json()) WritePlan(context.output, plan);
    if (!dirs_.empty() && version_.empty()) {
      Say(
          fmt::format("data directories do not say what was committed: {} is the newest version "
                      "with all shards here",
                      ToString(plan.version)));
    }
    if (dry_run_) {
      if (context.output.json()) WriteJson(context, plan, false);
      return ExitCode::kOk;
    }
    if (!Confirmed(context)) {
      Say("nothing was written");
      return ExitCode::kError;
    }
    HOLDFAST_RETURN_IF_ERROR(Materialise(context, *source, plan, to_));
    if (context.output.json()) {
      WriteJson(context, plan, true);
    } else {
      context.output.Write(fmt::format(
          "restored {}/{} to {}: {}, {}\n", plan.job, ToString(plan.version), Printable(to_),
          Count(plan.shards.size(), "file"), FormatBytes(plan.bytes())));
    }
    return ExitCode::kOk;
  }

 private:
  /// Asks where somebody can answer. A script that calls this command has decided already.
  bool Confirmed(Context& context) const {
    bool asked = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1;
    if (yes_ || context.output.json() || !asked) return true;
    static_cast<void>(context.output.Flush());
    std::fputs("Write these files? [y/N] ", stderr);
    std::fflush(stderr);
    char answer[16] = {};
    if (std::fgets(answer, sizeof(answer), stdin) == nullptr) return false;
    return answer[0] == 'y' || answer[0] == 'Y';
  }

  /// Writes all shards beside each other, then publishes them together.
  static Status Materialise(Context& context, RestoreSource& source, RestorePlan& plan,
                            const std::string& to) {
    HOLDFAST_ASSIGN_OR_RETURN(RestoreTarget target, RestoreTarget::Make(to));
    Progress progress("restoring", plan.bytes(), true, context.clock);
    std::vector<std::unique_ptr<ShardFile>> files(plan.shards.size());
    Mutex mutex;
    Status first_error;
    ParallelFor(files.size(), kShardsAtOnce, [&](size_t i) {
      auto file = Fetch(source, target, plan.shards[i], progress);
      if (file) {
        files[i] = *std::move(file);
        return true;
      }
      MutexLock lock(mutex);
      if (first_error.ok()) first_error = file.error();
      return false;
    });
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    HOLDFAST_RETURN_IF_ERROR(first_error);
    return Publish(target, files);
  }
  void WritePlan(Output& output, const RestorePlan& plan) const {
    output.Write(fmt::format("{}/{}: {}, {}\n", plan.job, ToString(plan.version),
                             Count(plan.world, "rank"), FormatBytes(plan.bytes())));
    Table table({{"RANK", true, false},
                 {dirs_.empty() ? "NODE" : "DATA DIR", false, true},
                 {"TIER", false, false},
                 {"SIZE", true, false},
                 {"FILE", false, true}});
    for (const ShardSource& shard : plan.shards) {
      const ExpectedShard& expected = shard.expected;
      table.Add({{std::to_string(expected.key.rank.value)},
                 {shard.node},
                 {std::string(ToString(shard.tier))},
                 {FormatBytes(expected.image_bytes)},
                 {RestoredName(expected.key.rank, expected.world)}});
    }
    output.WriteTable(table);
  }

  void WriteJson(Context& context, const RestorePlan& plan, bool restored) const {
    Json shards = Json::array();
    for (const ShardSource& shard : plan.shards) {
      const ExpectedShard& expected = shard.expected;
      shards.push_back({{"rank", expected.key.rank.value},
                        {dirs_.empty() ? "node" : "data_dir", shard.node},
                        {"tier", ToString(shard.tier)},
                        {"bytes", expected.image_bytes},
                        {"digest", FormatDigest(expected.digest)},
                        {"file", RestoredName(expected.key.rank, expected.world)}});
    }
    context.output.WriteJson("restore", {{"time", FormatUtc(context.clock.WallNanos())},
                                         {"job", plan.job},
                                         {"version", ToString(plan.version)},
                                         {"world", plan.world},
                                         {"bytes", plan.bytes()},
                                         {"to", to_},
                                         {"restored", restored},
                                         {"shards", shards}});
  }

  std::string job_;
  std::string to_;
  std::string version_;
  std::string tier_;
  bool dry_run_ = false;
  bool yes_ = false;
  std::vector<std::string> dirs_;
};

}  // namespace

std::unique_ptr<Command> MakeRestoreCommand() { return std::make_unique<RestoreCommand>(); }

}  // namespace holdfast::cli
