#include <fmt/format.h>

#include <algorithm>

#include "agent/selftest/self_test.h"
#include "base/config.h"
#include "cli/core/command.h"
#include "cli/core/text.h"
#include "cli/doctor/commands.h"
#include "cli/doctor/preflight.h"

namespace holdfast::cli {

namespace {

using selftest::CheckResult;
using selftest::Outcome;

constexpr const char* kDoctorFooter = R"(
Checks whether this node is ready for a job, with the agent's configuration: kernel, io_uring, huge
pages, limits, memory, /dev/shm, a write test of two seconds on each disk, the dates of
certificates, the coordinator, the clock, every other node and its rate, and the room for versions.
Each line has one finding, and what to do. Works before an agent runs, and while one does; changes
nothing. Run it as root or as the agent's user. Connects to `coordinator` of the configuration with
its certificates, and not to --endpoint.

With --self-test: tests the parts of this machine, without an agent, a coordinator or the network.
Every core computes known results for two seconds. Patterns are written to an eighth of the
available memory (at most 1 GiB) and read back, and likewise to an unnamed file in each data
directory (256 MiB, at most a quarter of the free space). Takes a few seconds, at most about 20 s
with one disk, and slows down a job that trains on this machine.

Exit code 2 when a check failed, 3 when something could not be checked.

Examples:
  sudo holdfast doctor
  holdfast doctor --config /etc/holdfast/agent.toml --save-bytes 80GiB
  holdfast doctor --set coordinator=10.0.0.5:7070 -o json | jq '.findings[]|select(.result!="ok")'
  holdfast doctor --self-test --data-dir /data0 --data-dir /data1
)";

Tone ToneOf(Readiness readiness) {
  switch (readiness) {
    case Readiness::kOk:
      return Tone::kGood;
    case Readiness::kSkipped:
      return Tone::kFaint;
    case Readiness::kWarn:
    case Readiness::kUnknown:
      return Tone::kWarn;
    case Readiness::kFail:
      return Tone::kBad;
  }
  return Tone::kPlain;
}

void Write(Output& output, const Findings& findings) {
  if (output.json()) {
    Json list = Json::array();
    for (const Finding& finding : findings) {
      const bool failed = finding.readiness == Readiness::kFail;
      list.push_back({{"check", finding.check},
                      {"result", failed ? "fail" : ToString(finding.readiness)},
                      {"what", finding.what},
                      {"remedy", finding.remedy}});
    }
    return output.WriteJson("preflight", {{"findings", list}});
  }
  size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, DisplayWidth(finding.check));
  for (const Finding& finding : findings) {
    const std::string result(ToString(finding.readiness));
    output.Write(fmt::format("{}  {}  {}\n", Pad(finding.check, width, false),
                             output.Tint(Pad(result, 7, false), ToneOf(finding.readiness)),
                             Printable(finding.what)));
    if (finding.remedy.empty()) continue;
    output.Write(fmt::format("{}  -> {}\n", Pad("", width, false), Printable(finding.remedy)));
  }
}

Tone ToneOf(Outcome outcome) {
  if (outcome == Outcome::kPassed) return Tone::kGood;
  return outcome == Outcome::kFailed ? Tone::kBad : Tone::kWarn;
}

std::string RateText(double rate) {
  return rate == 0 ? "-" : fmt::format("{:.2f} GB/s", rate / 1e9);
}

Json RateJson(double rate) { return rate == 0 ? Json() : Json(rate); }

std::string_view NameOf(Outcome outcome) {
  return outcome == Outcome::kNotTested ? "not_tested"
         : outcome == Outcome::kFailed  ? "failed"
                                        : "passed";
}

CLI::Validator BytesCheck() {
  return CLI::Validator(
      [](std::string& text) {
        const auto bytes = ParseBytes(text);
        return bytes ? std::string() : bytes.error().message();
      },
      "", "bytes");
}

class DoctorCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("doctor", "Check whether this node is ready for a job");
    command->footer(kDoctorFooter);
    CLI::Option* config =
        command
            ->add_option("--config", preflight_.config_path,
                         "The agent's configuration (/etc/holdfast/agent.toml, if it exists)")
            ->type_name("FILE");
    CLI::Option* set =
        command->add_option("--set", preflight_.settings, "Set a key of it; may be repeated")
            ->type_name("KEY=VALUE")
            ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
            ->expected(1);
    CLI::Option* save =
        command
            ->add_option("--save-bytes", save_bytes_,
                         "What the ranks of this node save at a step, such as 80GiB")
            ->type_name("BYTES")
            ->check(BytesCheck());
    CLI::Option* self_test = command->add_flag(
        "--self-test", self_test_, "Test the processors, the memory and the disks instead");
    for (CLI::Option* option : {config, set, save}) option->excludes(self_test);
    command
        ->add_option("--data-dir", data_dirs_,
                     "With --self-test: test the disk of this directory; may be repeated")
        ->type_name("DIR")
        ->needs(self_test);
    command->add_option("--memory", memory_, "With --self-test: most memory to test (1GiB)")
        ->type_name("BYTES")
        ->check(BytesCheck())
        ->needs(self_test);
    command
        ->add_option("--disk", disk_,
                     "Most bytes to write to each disk (4GiB; with --self-test: 256MiB)")
        ->type_name("BYTES")
        ->check(BytesCheck());
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    if (self_test_) return RunTests(context);
    if (!disk_.empty()) {
      HOLDFAST_ASSIGN_OR_RETURN(preflight_.disk_bytes, ParseBytes(disk_));
    }
    if (!save_bytes_.empty()) {
      HOLDFAST_ASSIGN_OR_RETURN(preflight_.save_bytes, ParseBytes(save_bytes_));
    }
    HOLDFAST_ASSIGN_OR_RETURN(const Findings findings,
                              RunPreflight(preflight_, context.options, context.clock));
    cli::Write(context.output, findings);
    return cli::ExitCodeOf(findings);
  }

 private:
  Result<ExitCode> RunTests(Context& context) const {
    selftest::SelfTestOptions options;
    HOLDFAST_ASSIGN_OR_RETURN(options.memory.bytes, ParseBytes(memory_.empty() ? "1GiB" : memory_));
    HOLDFAST_ASSIGN_OR_RETURN(options.disk.bytes, ParseBytes(disk_.empty() ? "256MiB" : disk_));
    options.data_dirs = data_dirs_;
    if (!context.output.json()) {
      PrintMessage("testing this machine: a few seconds for each part");
    }
    const std::vector<CheckResult> results = selftest::RunSelfTest(options);
    Write(context.output, results);
    ExitCode code = ExitCode::kOk;
    for (const CheckResult& result : results) {
      if (result.outcome == Outcome::kFailed) return ExitCode::kFinding;
      if (result.outcome == Outcome::kNotTested) code = ExitCode::kPartial;
    }
    return code;
  }

  static void Write(Output& output, const std::vector<CheckResult>& results) {
    if (output.json()) {
      Json checks = Json::array();
      for (const CheckResult& result : results) {
        checks.push_back({{"part", result.part},
                          {"result", NameOf(result.outcome)},
                          {"what", result.what},
                          {"bytes", result.bytes},
                          {"write_bytes_per_s", RateJson(result.write_rate)},
                          {"read_bytes_per_s", RateJson(result.read_rate)},
                          {"seconds", result.seconds}});
      }
      return output.WriteJson("self_test", {{"checks", checks}});
    }
    Table table({{"PART", false, true},
                 {"RESULT", false, false},
                 {"WRITE", true, false},
                 {"READ", true, false},
                 {"SECONDS", true, false},
                 {"WHAT", false, true}});
    for (const CheckResult& result : results) {
      table.Add({{result.part},
                 {std::string(ToString(result.outcome)), ToneOf(result.outcome)},
                 {RateText(result.write_rate)},
                 {RateText(result.read_rate)},
                 {fmt::format("{:.1f}", result.seconds)},
                 {result.what}});
    }
    output.WriteTable(table);
  }

  bool self_test_ = false;
  PreflightOptions preflight_;
  std::string save_bytes_;
  std::vector<std::string> data_dirs_;
  std::string memory_;  // empty: the default of the mode
  std::string disk_;
};

}  // namespace

std::unique_ptr<Command> MakeDoctorCommand() { return std::make_unique<DoctorCommand>(); }

}  // namespace holdfast::cli
