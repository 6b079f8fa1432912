#include "cli/core/command.h"

#include <unistd.h>

#include <cstdio>

#include "base/endpoint.h"
#include "base/job_name.h"
#include "cli/core/interrupt.h"

namespace holdfast::cli {

namespace {
/// CLI11's validators return an empty string for a valid value, otherwise the error.
std::string ValidationMessage(const Status& status) { return status.ok() ? "" : status.message(); }
}  // namespace

CLI::Validator NameCheck(const std::string& what) {
  return {[what](std::string& value) { return ValidationMessage(ValidateName(what, value)); }, "",
          ""};
}

CLI::Validator EndpointCheck() {
  return {[](std::string& value) -> std::string {
            auto endpoints = ParseEndpointList(value);
            return endpoints ? "" : endpoints.error().message();
          },
          "", ""};
}

CLI::Validator JobNameCheck() {
  return {[](std::string& value) { return ValidationMessage(ValidateJobName(value)); }, "", ""};
}

CLI::Validator VersionCheck() {
  return {[](std::string& value) -> std::string {
            Result<VersionId> version = ParseVersionId(value);
            if (!version) return version.error().message();
            return version->incarnation.value > 0 ? ""
                                                  : "incarnations count from 1: write e.g. 1-120";
          },
          "", ""};
}

CLI::Validator TierCheck() {
  return {[](std::string& value) -> std::string {
            Result<Tier> tier = ParseTier(value);
            return tier ? "" : tier.error().message();
          },
          "", ""};
}

CLI::Validator DurationCheck() {
  return {[](std::string& value) -> std::string {
            Result<int64_t> ms = ParseDurationMs(value);
            return ms ? "" : ms.error().message();
          },
          "", ""};
}

std::optional<VersionId> VersionOf(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return ParseVersionId(text).value_or(VersionId{});
}

bool Confirmed(Context& context, const std::string& question, bool yes) {
  bool asked = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1;
  if (yes || context.output.json() || !asked) return true;
  static_cast<void>(context.output.Flush());
  std::fprintf(stderr, "%s [y/N] ", question.c_str());
  std::fflush(stderr);
  char answer[16] = {};
  if (std::fgets(answer, sizeof(answer), stdin) == nullptr) return false;
  return answer[0] == 'y' || answer[0] == 'Y';
}

void WatchOptions::AddTo(CLI::App& app) {
  app.add_flag("-w,--watch", watch, "Repeat until interrupted; prints JSON lines with -o json");
  app.add_option("--interval", interval, "Pause between two outputs of --watch")
      ->type_name("DURATION")
      ->check(DurationCheck())
      ->capture_default_str();
  app.add_option("--count", count, "Stop --watch after this many outputs")->type_name("N");
}

Result<ExitCode> RunWatched(Context& context, const WatchOptions& watch,
                            const std::function<Result<ExitCode>()>& frame) {
  if (!watch.watch) return frame();
  Output& output = context.output;
  output.set_json_lines(true);
  Result<ExitCode> last = ExitCode::kOk;
  for (uint64_t shown = 1;; ++shown) {
    output.BeginFrame();
    last = frame();
    HOLDFAST_RETURN_IF_ERROR(Interrupt::Check());
    bool final = watch.count > 0 && shown >= watch.count;
    if (!last && output.json()) {
      output.WriteJson("error", {{"time", FormatUtc(context.clock.WallNanos())},
                                 {"code", ErrorName(last.error().code())},
                                 {"message", last.error().message()}});
    }
    if (!last && !final) PrintError(last.error());
    HOLDFAST_RETURN_IF_ERROR(output.Flush());
    if (final) return last;
    HOLDFAST_RETURN_IF_ERROR(Interrupt::SleepFor(ParseDurationMs(watch.interval).value_or(2000)));
  }
}

}  // namespace holdfast::cli
