#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "cli/core/command.h"
#include "cli/offline/commands.h"
#include "cli/offline/data_dirs.h"
#include "cli/offline/inspect.h"

namespace holdfast::cli {

namespace {

constexpr const char* kInspectFooter = R"(
PATH may be a shard's image or part (any safetensors file, also of other programs), a seal, a
version's directory, a job's directory, a data directory, or a folder of safetensors files such as
`restore` and `export` write. Needs no service and changes nothing. With --deep, compares bytes with
the checksums of the seals next to them. The exit code is 2 when something does not match.

Examples:
  holdfast inspect out/rank-00000-of-00004.safetensors
  holdfast inspect /nvme0/hf/my-job/v3-120/rank-0.seal
  holdfast inspect /nvme0/hf/my-job/v3-120 --deep
  holdfast inspect /nvme0/hf
  holdfast inspect model.safetensors -o json | jq '.tensors | length'
)";

class InspectCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand(
        "inspect", "Show the contents of a file or directory, without a service");
    command->footer(kInspectFooter);
    command->add_option("PATH", path_, "A safetensors file, a seal, a version or a data directory")
        ->required();
    command->add_flag("--deep", deep_, "Read every byte and compare it with its checksum");
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    struct stat info {};
    if (::stat(path_.c_str(), &info) != 0)
      return Fail(ErrnoStatus(errno, "cannot inspect " + path_));
    // "dir/" and "dir" are the same.
    while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
    InspectRequest request{path_, deep_};
    auto code =
        S_ISDIR(info.st_mode) ? InspectDirectory(context, request) : InspectFile(context, request);
    // With JSON output, damage is reported as JSON, too.
    const bool found = !code && (code.error().code() == ErrorCode::kDataLoss ||
                                 code.error().code() == ErrorCode::kUnsupported);
    if (!found || !context.output.json()) return code;
    PrintError(code.error());
    context.output.WriteJson("inspect", {{"what", "unreadable"},
                                         {"path", path_},
                                         {"ok", false},
                                         {"message", code.error().message()}});
    return ExitCodeOf(code.error());
  }

 private:
  std::string path_;
  bool deep_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeInspectCommand() { return std::make_unique<InspectCommand>(); }

}  // namespace holdfast::cli
