#include <fmt/format.h>

#include <optional>
#include <vector>

#include "cli/backup/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/progress.h"
#include "cli/core/text.h"
#include "coordinator/store/backup.h"

namespace holdfast::cli {

namespace {
using coord::BackupCounts;
using coord::BackupWriter;

constexpr const char* kBackupFooter = R"(
Makes a backup of the coordinator's store, while the coordinator runs: of the embedded store and of
an etcd alike. The store has the record of each version. The checkpoints themselves are on the nodes
and are not part of it.

DIR is made on this machine and must not exist, or be empty. Until the backup is complete and
synced, its name is DIR.unfinished-NUMBER; a folder of that name is no backup and can be removed.
DIR has the commands and environments of runs, so only its owner can read it.

To use a backup after the store was lost (docs/backup.md has all steps):
  systemctl stop holdfast-coordinator
  mv DATA_DIR DATA_DIR.lost; cp -a DIR DATA_DIR     with the owner of DATA_DIR
  systemctl start holdfast-coordinator
  holdfast adopt --dry-run                          versions that are newer than the backup
The coordinator then uses the embedded store, also when the backup was made of an etcd.

An old backup is safe: no number is assigned twice, and versions that it does not know are kept.

Examples:
  holdfast backup /backup/holdfast-2026-05-01
  holdfast backup /backup/$(date +%F-%H) -o json
)";

/// Writes the parts of a backup as they arrive.
class BackupReceiver : public BackupSink {
 public:
  BackupReceiver(BackupWriter& writer, Context& context) : writer_(writer), context_(context) {}

  Status Take(coordinator::BackupPart& part) override {
    if (!expected_) {
      expected_ = BackupCounts{part.records(), part.bytes()};
      progress_.emplace("backup", part.bytes(), !context_.output.json(), context_.clock);
    }
    std::vector<coord::KeyValue> records;
    for (coordinator::BackupRecord& one : *part.mutable_entries()) {
      records.push_back({std::move(*one.mutable_key()), std::move(*one.mutable_value())});
    }
    if (records.empty()) return Status::Ok();
    const uint64_t bytes = coord::CountOf(records).bytes;
    HOLDFAST_RETURN_IF_ERROR(writer_.Add(records));
    progress_->Add(bytes);
    return Status::Ok();
  }

  /// Returns what the coordinator announced.
  BackupCounts expected() const { return expected_.value_or(BackupCounts{}); }

 private:
  BackupWriter& writer_;
  Context& context_;
  std::optional<BackupCounts> expected_;
  std::optional<Progress> progress_;
};

class BackupCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command =
        app.add_subcommand("backup", "Make a backup of the running coordinator's store");
    command->footer(kBackupFooter);
    command->add_option("DIR", dir_, "The folder of the backup; absent or empty")->required();
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    HOLDFAST_ASSIGN_OR_RETURN(BackupWriter writer, BackupWriter::Make(dir_));
    BackupReceiver receiver(writer, context);
    HOLDFAST_RETURN_IF_ERROR(client.Backup(receiver));
    HOLDFAST_ASSIGN_OR_RETURN(const BackupCounts counts, writer.Publish(receiver.expected()));
    if (context.output.json()) {
      context.output.WriteJson(
          "backup", {{"dir", dir_}, {"records", counts.records}, {"bytes", counts.bytes}});
    } else {
      context.output.Write(fmt::format("{} records ({}) are in {}\n", counts.records,
                                       FormatBytes(counts.bytes), Printable(dir_)));
    }
    return ExitCode::kOk;
  }

 private:
  std::string dir_;
};

}  // namespace

std::unique_ptr<Command> MakeBackupCommand() { return std::make_unique<BackupCommand>(); }

}  // namespace holdfast::cli
