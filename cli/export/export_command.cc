#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "base/config.h"
#include "base/crash_point.h"
#include "base/random.h"
#include "cli/core/command.h"
#include "cli/core/text.h"
#include "cli/export/commands.h"
#include "cli/export/export_writer.h"
#include "cli/export/python_tool.h"
#include "storage/format/replica_sample.h"

namespace holdfast::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kExportFooter = R"(
Assembles every tensor from the slices that the ranks saved, for any number of ranks, and writes the
tensors for other programs into a new or empty directory:

  safetensors   model.safetensors, all tensors under their full names
  hf            model-00001-of-0000N.safetensors and model.safetensors.index.json: only the model,
                under the names in its module, as transformers loads it
  dcp           a directory that torch.distributed.checkpoint.load reads, with all values (needs
                Python)

Every chunk is compared with its checksum. Files get their final names only when all are complete
and synced. Memory use is bounded for a model of any size. The running job is not affected.

Examples:
  holdfast export my-job --format hf --to ./my-model
  holdfast export my-job --format hf --to ./out --max-shard-size 2GB --dry-run
  holdfast export my-job --format safetensors --to ./out --version 3-120 --entry ema
  holdfast export my-job --format dcp --to ./out --python ./venv/bin/python
  holdfast export my-job --format hf --to ./out --from-data-dir /nvme0/hf /nvme1/hf
)";

/// A folder within the target for intermediate files. Removed with its contents.
class WorkFolder {
 public:
  static Result<WorkFolder> Make(const TargetFolder& target) {
    std::string path = target.dir() + "/.export.tmp." + RandomHex(8);
    HOLDFAST_ASSIGN_OR_RETURN(TargetFolder folder, TargetFolder::Make(path));
    return WorkFolder(std::move(folder));
  }
  WorkFolder(WorkFolder&&) = default;
  ~WorkFolder() {
    std::error_code ignored;
    if (folder_.fd() >= 0) fs::remove_all(folder_.dir(), ignored);
  }
  const TargetFolder& folder() const { return folder_; }

 private:
  explicit WorkFolder(TargetFolder folder) : folder_(std::move(folder)) {}
  TargetFolder folder_;
};

Status PublishFiles(const TargetFolder& target, std::vector<TargetFile>& files) {
  std::vector<TargetFile*> all;
  for (TargetFile& file : files) all.push_back(&file);
  return PublishAll(target, all);
}

class ExportCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command =
        app.add_subcommand("export", "Write a version's complete tensors for other programs");
    command->footer(kExportFooter);
    command->add_option("JOB", job_, "The job")->required()->check(NameCheck("job"));
    command->add_option("--format", format_, "safetensors, hf or dcp")
        ->required()
        ->type_name("FORMAT")
        ->check(CLI::IsMember({"safetensors", "hf", "dcp"}).description(""));
    command->add_option("--to", to_, "A new or empty directory")->type_name("DIR")->required();
    source_.AddTo(*command);
    CLI::Option* entry =
        command->add_option("--entry", choice_.entry,
                            "Only this entry of the state, without its name as prefix [hf: the "
                            "model, if exactly one entry qualifies]");
    command->add_flag("--all", choice_.all, "All tensors by their full names, also with hf")
        ->excludes(entry);
    command->add_option("--max-shard-size", shard_size_, "hf: bytes of tensors per file")
        ->type_name("SIZE")
        ->check(SizeCheck())
        ->capture_default_str();
    python_.AddTo(*command);
    command->add_flag("--dry-run", dry_run_, "Show the files and write nothing");
    command->add_flag("-y,--yes", yes_, "Do not ask for confirmation (asked only on a terminal)");
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    const bool dcp = format_ == "dcp";
    if (dcp && !dry_run_) HOLDFAST_RETURN_IF_ERROR(python_.Check());
    RestorePlan plan;
    HOLDFAST_ASSIGN_OR_RETURN(auto source, source_.Open(context, job_, &plan));
    ExportHeaders headers;
    {
      Progress progress("reading headers", 0, false, context.clock);
      // Values refer to the names of the complete state, so a single entry is exported without
      // them.
      const bool values = dcp && choice_.entry.empty();
      HOLDFAST_ASSIGN_OR_RETURN(headers, ReadHeaders(*source, plan, values, progress));
    }
    HOLDFAST_ASSIGN_OR_RETURN(const Selection selection, Choose(headers));
    HOLDFAST_ASSIGN_OR_RETURN(
        const ExportLayout layout,
        PlanExport(headers.shards, selection.tensors, FormOf(plan, selection)));
    headers.shards.clear();
    uint64_t bytes = 0;
    for (const ExportFile& file : layout.files) bytes += file.bytes;
    HOLDFAST_RETURN_IF_ERROR(TargetFolder::Check(to_, dcp ? 2 * bytes : bytes));
    if (!context.output.json()) WritePlan(context.output, plan, layout);
    source_.PrintChosenVersion(plan);
    if (!dcp) PrintConvertedTypes(selection);
    if (!dry_run_) {
      if (!Confirmed(context, "Write these files?", yes_)) {
        PrintMessage("cancelled: nothing was written");
        return ExitCode::kError;
      }
      HOLDFAST_RETURN_IF_ERROR(Materialise(context, *source, plan, headers, layout));
    }
    if (context.output.json()) {
      WriteJson(context, plan, layout);
    } else if (!dry_run_) {
      context.output.Write(fmt::format(
          "exported {}/{} to {}: {}, {}\n", plan.job, ToString(plan.version), Printable(to_),
          Count(selection.tensors.size(), "tensor"), FormatBytes(bytes)));
    }
    return ExitCode::kOk;
  }

 private:
  static CLI::Validator SizeCheck() {
    return CLI::Validator(
        [](std::string& text) {
          Result<uint64_t> bytes = ParseBytes(text);
          if (!bytes) return bytes.error().message();
          return *bytes > 0 ? std::string() : std::string("must be more than 0");
        },
        "");
  }

  Result<Selection> Choose(const ExportHeaders& headers) const {
    std::set<std::string> names;
    for (const ParsedImage& image : headers.shards) {
      for (const PlacedTensor& tensor : image.tensors) {
        if (!tensor.spec.name.starts_with(kSampleCopiesPrefix)) {
          names.emplace(BaseTensorName(tensor.spec.name));
        }
      }
    }
    Choice choice = choice_;
    choice.find_model = format_ == "hf";
    return ChooseTensors({names.begin(), names.end()}, headers.notes, choice);
  }

  ExportForm FormOf(const RestorePlan& plan, const Selection& selection) const {
    ExportForm form;
    form.numbered = format_ == "hf";
    if (form.numbered) form.file_bytes_max = ParseBytes(shard_size_).value_or(0);
    // transformers requires the framework's name under "format".
    form.metadata = {{"format", "pt"}, {"source", plan.job + "/" + ToString(plan.version)}};
    if (!selection.aliases.empty()) form.metadata["aliases"] = Json(selection.aliases).dump();
    if (!selection.types.empty()) form.metadata["types"] = Json(selection.types).dump();
    return form;
  }

  static void PrintConvertedTypes(const Selection& selection) {
    for (const auto& [name, type] : selection.types) {
      bool pairs = type.find("complex") != std::string::npos;
      PrintMessage(Printable(fmt::format(
          "'{}' is {}, for which safetensors has no type: it is written as "
          "{}",
          name, type, pairs ? "pairs of numbers, in an additional dimension" : "its bits")));
    }
  }

  Status Materialise(Context& context, RestoreSource& source, RestorePlan& plan,
                     const ExportHeaders& headers, const ExportLayout& layout) const {
    HOLDFAST_ASSIGN_OR_RETURN(TargetFolder target, TargetFolder::Make(to_));
    Progress progress("exporting", BytesToRead(layout, plan), true, context.clock);
    if (format_ == "dcp") {
      HOLDFAST_ASSIGN_OR_RETURN(WorkFolder work, WorkFolder::Make(target));
      HOLDFAST_RETURN_IF_ERROR(
          WriteForPython(source, plan, headers, layout, work.folder(), progress));
      progress.Clear();
      HOLDFAST_ASSIGN_OR_RETURN(
          const std::string done,
          python_.Convert({"to-dcp", work.folder().dir(), work.folder().dir() + "/dcp"}));
      return PublishDcp(target, work.folder().dir() + "/dcp");
    }
    HOLDFAST_ASSIGN_OR_RETURN(auto files, WriteTensors(source, plan, layout, target, progress));
    if (format_ == "hf") {
      HOLDFAST_ASSIGN_OR_RETURN(
          TargetFile index,
          WriteSmallFile(target, "model.safetensors.index.json", IndexOf(layout)));
      files.push_back(std::move(index));
    }
    return PublishFiles(target, files);
  }

  /// Writes the tensors as one safetensors file, and each rank's extras as further files.
  static Status WriteForPython(RestoreSource& source, RestorePlan& plan,
                               const ExportHeaders& headers, const ExportLayout& layout,
                               const TargetFolder& work, Progress& progress) {
    HOLDFAST_ASSIGN_OR_RETURN(auto files, WriteTensors(source, plan, layout, work, progress));
    for (size_t rank = 0; rank < headers.extras.size(); ++rank) {
      for (const auto& [name, bytes] : headers.extras[rank]) {
        HOLDFAST_ASSIGN_OR_RETURN(
            TargetFile file, WriteSmallFile(work, fmt::format("rank-{:07}.{}", rank, name), bytes));
        files.push_back(std::move(file));
      }
    }
    return PublishFiles(work, files);
  }

  /// Moves the files that Python has written and synced. `.metadata` is last: without it the
  /// directory is not a checkpoint.
  static Status PublishDcp(const TargetFolder& target, const std::string& from) {
    constexpr const char* kMetadata = ".metadata";
    std::error_code error;
    std::vector<std::string> names;
    fs::directory_iterator entry(from, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      if (entry->path().filename() != kMetadata) names.push_back(entry->path().filename());
    }
    if (error) return ErrnoStatus(error.value(), "cannot list " + from);
    names.emplace_back(kMetadata);
    for (const std::string& name : names) {
      if (name == kMetadata) HOLDFAST_RETURN_IF_ERROR(target.Sync());
      HOLDFAST_CRASH_POINT("cli.before_rename");
      fs::rename(from + "/" + name, target.dir() + "/" + name, error);
      if (error)
        return ErrnoStatus(error.value(), "cannot rename a file to " + target.dir() + "/" + name);
    }
    return target.Sync();
  }

  static std::string IndexOf(const ExportLayout& layout) {
    Json index;
    index["metadata"] = {{"total_size", layout.tensor_bytes}};
    std::map<std::string, std::string> weights;
    for (const ExportFile& file : layout.files) {
      for (const PlacedTensor& tensor : file.tensors) weights.emplace(tensor.spec.name, file.name);
    }
    index["weight_map"] = weights;
    return index.dump(2) + "\n";
  }

  void WritePlan(Output& output, const RestorePlan& plan, const ExportLayout& layout) const {
    output.Write(fmt::format("{}/{}: saved by {}, {} of tensors\n", plan.job,
                             ToString(plan.version), Count(plan.world, "rank"),
                             FormatBytes(layout.tensor_bytes)));
    if (format_ == "dcp") return;
    Table table({{"FILE", false, true}, {"TENSORS", true, false}, {"SIZE", true, false}});
    for (const ExportFile& file : layout.files)
      table.Add({{file.name}, {std::to_string(file.tensors.size())}, {FormatBytes(file.bytes)}});
    output.WriteTable(table);
  }

  void WriteJson(Context& context, const RestorePlan& plan, const ExportLayout& layout) const {
    Json files = Json::array();
    for (const ExportFile& file : layout.files) {
      if (format_ == "dcp") break;  // torch chooses their names
      files.push_back(
          {{"file", file.name}, {"tensors", file.tensors.size()}, {"bytes", file.bytes}});
    }
    size_t tensors = 0;
    for (const ExportFile& file : layout.files) tensors += file.tensors.size();
    context.output.WriteJson("export", {{"time", FormatUtc(context.clock.WallNanos())},
                                        {"job", plan.job},
                                        {"version", ToString(plan.version)},
                                        {"world", plan.world},
                                        {"format", format_},
                                        {"tensors", tensors},
                                        {"tensor_bytes", layout.tensor_bytes},
                                        {"to", to_},
                                        {"exported", !dry_run_},
                                        {"files", files}});
  }

  std::string job_;
  std::string format_;
  std::string to_;
  SourceOptions source_;
  Choice choice_;
  std::string shard_size_ = "5GB";
  PythonTool python_;
  bool dry_run_ = false;
  bool yes_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeExportCommand() { return std::make_unique<ExportCommand>(); }

}  // namespace holdfast::cli
