#include <fmt/format.h>

#include <filesystem>

#include "base/config.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "cli/core/text.h"
#include "cli/export/commands.h"
#include "cli/export/python_tool.h"

namespace holdfast::cli {

namespace {

constexpr const char* kImportFooter = R"(
Reads a directory that torch.distributed.checkpoint wrote (dcp.save, FileSystemWriter), or one of
safetensors files, and saves it as a version of a job, through the agent of this node. The job then
restores it like any other version: holdfast.torch.Checkpointer, StorageReader, export. No code in
the directory is executed: pickles may contain only the classes of a checkpoint's metadata, and any
other class is refused by name.

An import is a start of the job: give the name of a job that does not run.

Examples:
  holdfast import ./checkpoint/step-1000 --job my-job --step 1000
  holdfast import ./checkpoint --job my-job --entry app.model=model --entry app.optim=optim
  holdfast import ./hf-model --job finetune --entry model       safetensors of Hugging Face
  holdfast import ./checkpoint --job my-job --dry-run           show its contents
)";

class ImportCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command =
        app.add_subcommand("import", "Save a PyTorch checkpoint as a version of a job");
    command->footer(kImportFooter);
    command->add_option("DIR", dir_, "The checkpoint's directory")->type_name("DIR")->required();
    command->add_option("--job", job_, "The job of the new version")
        ->required()
        ->check(JobNameCheck());
    command->add_option("--step", step_, "The step of the new version")->capture_default_str();
    command
        ->add_option("--entry", entries_,
                     "Import FROM of the checkpoint (without FROM: all of it) as entry NAME of the "
                     "state; may be repeated")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->allow_extra_args(false)
        ->type_name("[FROM=]NAME");
    command
        ->add_option("--socket", socket_, "The agent's socket [$HOLDFAST_SOCKET, or the default]")
        ->type_name("PATH");
    command
        ->add_option("--wait", tier_,
                     "Wait until the version is committed at this tier: memory, "
                     "peer or disk")
        ->check(CLI::IsMember({"memory", "peer", "disk"}).description(""))
        ->type_name("TIER")
        ->capture_default_str();
    python_.AddTo(*command);
    command->add_flag("--dry-run", dry_run_, "Show the checkpoint's contents and save nothing");
    command->add_flag("-y,--yes", yes_, "Import into an existing job, none of whose ranks runs");
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    std::error_code error;
    if (!std::filesystem::is_directory(dir_, error))
      return Fail(NotFoundError("there is no directory " + Printable(dir_)));
    if (!dry_run_) HOLDFAST_RETURN_IF_ERROR(RefuseKnownJob(context));
    std::vector<std::string> arguments = {
        "import", dir_, "--job", job_, "--step", std::to_string(step_), "--wait", tier_};
    if (!socket_.empty()) arguments.insert(arguments.end(), {"--socket", socket_});
    for (const std::string& entry : entries_) arguments.push_back("--entry=" + entry);
    if (dry_run_) arguments.emplace_back("--dry-run");
    HOLDFAST_ASSIGN_OR_RETURN(const std::string answer, python_.Convert(arguments));
    return Show(context, answer);
  }

 private:
  /// Refuses an existing job: an import is a start of the job, and would fence ranks that run.
  Status RefuseKnownJob(Context& context) const {
    if (yes_) return Status::Ok();
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    Result<coordinator::GetStatusReply> known = client.GetStatus(job_);
    if (!known && known.error().code() == ErrorCode::kNotFound) return Status::Ok();
    if (!known) return known.error();
    return FailedPreconditionError(
        fmt::format("job '{}' exists already, and an import is a new start of it, which fences "
                    "ranks that still run: import into a job of another name, or give --yes when "
                    "none runs",
                    job_));
  }

  Result<ExitCode> Show(Context& context, const std::string& text) const {
    Json answer = Json::parse(text, nullptr, false);
    if (!answer.is_object() || !answer.contains("tensors") || !answer.contains("bytes"))
      return Fail(InternalError("the conversion returned no valid result"));
    if (context.output.json()) {
      context.output.WriteJson("import", answer);
      return ExitCode::kOk;
    }
    for (const auto& entry : answer["entries"])
      context.output.Write(fmt::format("{:<24} {:>8}  {}\n",
                                       Printable(entry.value("entry", std::string())),
                                       Count(entry.value("tensors", uint64_t{0}), "tensor"),
                                       FormatBytes(entry.value("bytes", uint64_t{0}))));
    context.output.Write(
        fmt::format("{} {}: {}, {}\n", dry_run_ ? "would import as" : "imported as",
                    job_ + (dry_run_ ? "" : "/" + answer.value("version", std::string())),
                    Count(answer.value("tensors", uint64_t{0}), "tensor"),
                    FormatBytes(answer.value("bytes", uint64_t{0}))));
    return ExitCode::kOk;
  }

  std::string dir_;
  std::string job_;
  uint64_t step_ = 0;
  std::vector<std::string> entries_;
  std::string socket_;
  std::string tier_ = "memory";
  PythonTool python_;
  bool dry_run_ = false;
  bool yes_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeImportCommand() { return std::make_unique<ImportCommand>(); }

}  // namespace holdfast::cli
