#include <fmt/format.h>

#include "agent/selftest/self_test.h"
#include "base/config.h"
#include "cli/cluster/commands.h"
#include "cli/core/command.h"
#include "cli/core/text.h"

namespace holdfast::cli {

namespace {

using selftest::CheckResult;
using selftest::Outcome;

constexpr const char* kDoctorFooter = R"(
Tests this machine, without an agent, a coordinator or the network. Every core computes known
results for two seconds. Patterns are written to an eighth of the available memory (at most 1 GiB)
and read back, and likewise to an unnamed file in each data directory (256 MiB, at most a quarter of
the free space). Takes a few seconds, at most about 20 s with one disk, and slows down a job that
trains on this machine.

Exit code 2 when a part failed, 3 when a part could not be tested.

Examples:
  holdfast doctor --self-test
  holdfast doctor --self-test --data-dir /data0 --data-dir /data1
  holdfast doctor --self-test --data-dir /data0 -o json | jq '.checks[].result'
)";

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
    CLI::App* command =
        app.add_subcommand("doctor", "Test the processors, memory and disks of this machine");
    command->footer(kDoctorFooter);
    command->add_flag("--self-test", self_test_, "Run the tests")->required();
    command
        ->add_option("--data-dir", data_dirs_, "Test the disk of this directory; may be repeated")
        ->type_name("DIR");
    command->add_option("--memory", memory_, "Maximum memory to test, such as 256MiB")
        ->type_name("BYTES")
        ->check(BytesCheck())
        ->capture_default_str();
    command->add_option("--disk", disk_, "Maximum to write to each disk")
        ->type_name("BYTES")
        ->check(BytesCheck())
        ->capture_default_str();
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    selftest::SelfTestOptions options;
    HOLDFAST_ASSIGN_OR_RETURN(options.memory.bytes, ParseBytes(memory_));
    HOLDFAST_ASSIGN_OR_RETURN(options.disk.bytes, ParseBytes(disk_));
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

 private:
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
  std::vector<std::string> data_dirs_;
  std::string memory_ = "1GiB";
  std::string disk_ = "256MiB";
};

}  // namespace

std::unique_ptr<Command> MakeDoctorCommand() { return std::make_unique<DoctorCommand>(); }

}  // namespace holdfast::cli
