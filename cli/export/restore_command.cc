#include <fmt/format.h>

#include <optional>
#include <string>

#include "base/config.h"
#include "base/mutex.h"
#include "cli/core/command.h"
#include "cli/core/interrupt.h"
#include "cli/core/parallel.h"
#include "cli/core/progress.h"
#include "cli/core/text.h"
#include "cli/export/commands.h"
#include "cli/export/target.h"
#include "cli/shards/shard_reader.h"

namespace holdfast::cli {

namespace {

constexpr const char* kRestoreFooter = R"(
Writes each rank's shard as a plain safetensors file, rank-00000-of-00004.safetensors, into a new or
empty directory. Every chunk is compared with its checksum. Files get their final names only when
all are complete and synced. A chunk that is damaged or lost is read from another replica, or its
parity group decodes it. The running job is not affected.

Examples:
  holdfast restore my-job --to ./out --dry-run           the source of each shard
  holdfast restore my-job --to ./out                     the newest version that can be restored
  holdfast restore my-job --to ./out --version 3-120 --tier disk --yes
  holdfast restore my-job --to ./out --from-data-dir /nvme0/hf /nvme1/hf    without any service
)";

/// Shards read concurrently.
constexpr size_t kConcurrentShards = 4;

/// "rank-00000-of-00004.safetensors"
std::string RestoredName(const ExpectedShard& shard) {
  return fmt::format("rank-{:05}-of-{:05}.safetensors", shard.key.rank.value, shard.world);
}

/// Writes one shard, complete and synced, under its temporary name.
Result<TargetFile> Fetch(RestoreSource& source, const TargetFolder& target, ShardSource& shard,
                         Progress& progress) {
  const ExpectedShard expected = shard.expected;
  HOLDFAST_ASSIGN_OR_RETURN(TargetFile file, TargetFile::Create(target, RestoredName(expected)));
  HOLDFAST_RETURN_IF_ERROR(file.Reserve(expected.image_bytes));
  ShardReader reader(source, shard, progress);
  HOLDFAST_RETURN_IF_ERROR(
      reader.Read(0, expected.image_bytes, [&](uint64_t offset, std::span<const std::byte> bytes) {
        progress.Add(bytes.size());
        return file.Write(offset, bytes);
      }));
  HOLDFAST_RETURN_IF_ERROR(file.Finish());
  return file;
}

class RestoreCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command =
        app.add_subcommand("restore", "Write a version's shards as plain safetensors files");
    command->footer(kRestoreFooter);
    command->add_option("JOB", job_, "The job")->required()->check(NameCheck("job"));
    command->add_option("--to", to_, "A new or empty directory")->type_name("DIR")->required();
    source_.AddTo(*command);
    command->add_flag("--dry-run", dry_run_, "Show the plan and write nothing");
    command->add_flag("-y,--yes", yes_, "Do not ask for confirmation (asked only on a terminal)");
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    RestorePlan plan;
    HOLDFAST_ASSIGN_OR_RETURN(auto source, source_.Open(context, job_, &plan));
    HOLDFAST_RETURN_IF_ERROR(TargetFolder::Check(to_, plan.bytes()));
    if (!context.output.json()) WritePlan(context.output, plan);
    source_.PrintChosenVersion(plan);
    if (dry_run_) {
      if (context.output.json()) WriteJson(context, plan, false);
      return ExitCode::kOk;
    }
    if (!Confirmed(context, "Write these files?", yes_)) {
      PrintMessage("cancelled: nothing was written");
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
  /// Writes all shards concurrently, then publishes them together.
  static Status Materialise(Context& context, RestoreSource& source, RestorePlan& plan,
                            const std::string& to) {
    HOLDFAST_ASSIGN_OR_RETURN(TargetFolder target, TargetFolder::Make(to));
    Progress progress("restoring", plan.bytes(), true, context.clock);
    std::vector<std::optional<TargetFile>> files(plan.shards.size());
    Mutex mutex;
    Status first_error;
    ParallelFor(files.size(), kConcurrentShards, [&](size_t i) {
      auto file = Fetch(source, target, plan.shards[i], progress);
      if (file) {
        files[i].emplace(*std::move(file));
        return true;
      }
      MutexLock lock(mutex);
      if (first_error.ok()) first_error = file.error();
      return false;
    });
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    HOLDFAST_RETURN_IF_ERROR(first_error);
    std::vector<TargetFile*> all;
    for (auto& file : files) all.push_back(&*file);
    return PublishAll(target, all);
  }

  void WritePlan(Output& output, const RestorePlan& plan) const {
    output.Write(fmt::format("{}/{}: {}, {}\n", plan.job, ToString(plan.version),
                             Count(plan.world, "rank"), FormatBytes(plan.bytes())));
    Table table({{"RANK", true, false},
                 {source_.place_title(), false, true},
                 {"TIER", false, false},
                 {"SIZE", true, false},
                 {"FILE", false, true}});
    for (const ShardSource& shard : plan.shards) {
      const ExpectedShard& expected = shard.expected;
      table.Add({{std::to_string(expected.key.rank.value)},
                 {shard.node},
                 {std::string(ToString(shard.tier))},
                 {FormatBytes(expected.image_bytes)},
                 {RestoredName(expected)}});
    }
    output.WriteTable(table);
  }

  void WriteJson(Context& context, const RestorePlan& plan, bool restored) const {
    Json shards = Json::array();
    for (const ShardSource& shard : plan.shards) {
      const ExpectedShard& expected = shard.expected;
      shards.push_back({{"rank", expected.key.rank.value},
                        {source_.place_key(), shard.node},
                        {"tier", ToString(shard.tier)},
                        {"bytes", expected.image_bytes},
                        {"digest", FormatDigest(expected.digest)},
                        {"file", RestoredName(expected)}});
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
  SourceOptions source_;
  bool dry_run_ = false;
  bool yes_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeRestoreCommand() { return std::make_unique<RestoreCommand>(); }

}  // namespace holdfast::cli
