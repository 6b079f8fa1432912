#include <fmt/format.h>

#include <algorithm>

#include "base/config.h"
#include "cli/core/command.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"
#include "cli/shards/commands.h"
#include "cli/shards/shard_check.h"

namespace holdfast::cli {

namespace {

constexpr const char* kVerifyFooter = R"(
Without --deep, checks the structure: seals, headers, lengths. With --deep, reads every byte and
compares it with the checksums of the shard's seal. Online, agents verify their own replicas of
shards and parity shards at every tier. They repair damaged chunks from a good replica or from the
parity group; a replica that cannot be repaired goes to quarantine. The coordinator keeps the
outcome, and `versions -o wide` and the page show the last one of each version. With --data-dir,
reads files directly, changes nothing and needs no service. The data directories of one node are
checked for the shards of that node, those of several nodes for complete versions. The digests of
all shards of a version are compared with the digest of its commit. MISSING is a
shard that should exist and has no good seal; the message shows whether its parity group can decode
it, and --deep decodes it. The exit code is 2 when a shard is damaged or missing, or the shards are
not the committed ones, 3 when one could not be checked.

Examples:
  holdfast verify my-job                              structure of every version
  holdfast verify my-job --version 3-120 --deep       every byte of one version
  holdfast verify --deep --sample 5%                  a random twentieth of all shards
  holdfast verify --data-dir /nvme0/hf /nvme1/hf --deep     one node's directories
)";

/// The values of the RESULT column and of JSON, in capitals when an operator must act.
std::string NameOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kDamaged:
      return "DAMAGED";
    case Verdict::kMissing:
      return "MISSING";
    case Verdict::kUnchecked:
      return "UNCHECKED";
    case Verdict::kReplaced:
      return "gone";
  }
  return "DAMAGED";
}

Tone ToneOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return Tone::kGood;
    case Verdict::kDamaged:
    case Verdict::kMissing:
      return Tone::kBad;
    case Verdict::kUnchecked:
      return Tone::kWarn;
    case Verdict::kReplaced:
      return Tone::kFaint;
  }
  return Tone::kBad;
}

/// Damage is more severe than a failed check: an operator must act on it first.
ExitCode ExitCodeOf(const CheckReport& report) {
  ExitCode code = report.partial ? ExitCode::kPartial : ExitCode::kOk;
  if (!report.contradictions.empty()) code = Worse(code, ExitCode::kFinding);
  for (const ShardCheck& check : report.checks) {
    switch (check.verdict) {
      case Verdict::kOk:
      case Verdict::kReplaced:
        break;
      case Verdict::kDamaged:
      case Verdict::kMissing:
        code = Worse(code, ExitCode::kFinding);
        break;
      case Verdict::kUnchecked:
        code = Worse(code, ExitCode::kPartial);
        break;
    }
  }
  return code;
}

/// Returns the last line: counts that add up to the shards checked.
std::string Summary(const CheckReport& report, bool deep) {
  uint64_t bytes = 0;
  uint64_t counts[5] = {};
  for (const ShardCheck& check : report.checks) {
    ++counts[static_cast<size_t>(check.verdict)];
    if (check.verdict == Verdict::kOk) bytes += check.bytes;
  }
  std::string text = fmt::format("{} checked{}", Count(report.checks.size(), "shard"),
                                 deep ? ", every byte" : ", structure only");
  if (report.left_out > 0) text += fmt::format(" ({} not in the sample)", report.left_out);
  text += fmt::format(": {} ok ({})", counts[0], FormatBytes(bytes));
  if (counts[1] > 0) text += fmt::format(", {} damaged", counts[1]);
  if (counts[2] > 0) {
    text += fmt::format(", {} missing", counts[2]);
    const auto decodable = std::count_if(report.checks.begin(), report.checks.end(),
                                         [](const ShardCheck& check) { return check.decodable; });
    if (decodable > 0)
      text += fmt::format(" ({} of them {})", decodable,
                          deep ? "decoded from parity" : "can be decoded");
  }
  if (counts[3] > 0) text += fmt::format(", {} not checked", counts[3]);
  if (counts[4] > 0) text += fmt::format(", {} gone meanwhile", counts[4]);
  if (report.committed > 0) {
    text += fmt::format("; {} with all committed shards", Count(report.committed, "version"));
  }
  return text;
}

class VerifyCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command =
        app.add_subcommand("verify", "Verify shards on every tier, or in data directories");
    command->footer(kVerifyFooter);
    command->add_option("JOB", job_, "Only this job")->check(NameCheck("job"));
    command->add_option("--version", version_, "Only this version, e.g. 3-120")
        ->check(VersionCheck());
    command->add_flag("--deep", deep_, "Read every byte and compare it with its checksum");
    auto check = [](std::string& value) -> std::string {
      Result<double> share = ParseShare(value);
      return share ? "" : share.error().message();
    };
    command
        ->add_option("--sample", sample_, "Check only this share of the shards, chosen at random")
        ->type_name("PERCENT")
        ->check(CLI::Validator(check, "", ""));
    command
        ->add_option("--data-dir", dirs_,
                     "Verify these data directories of one or more nodes, without a coordinator")
        ->type_name("DIR")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    CheckOptions options{job_, VersionOf(version_), deep_,
                         sample_.empty() ? 1 : ParseShare(sample_).value_or(1)};
    if (options.version && job_.empty()) {
      PrintError(InvalidArgumentError("--version needs a JOB: give its name, too"));
      return ExitCode::kUsage;
    }
    HOLDFAST_ASSIGN_OR_RETURN(CheckReport report, dirs_.empty()
                                                      ? CheckOnline(context, options)
                                                      : CheckOffline(context, options, dirs_));
    if (context.output.json()) {
      WriteJson(context, report);
    } else {
      WriteText(context.output, report);
    }
    return ExitCodeOf(report);
  }

 private:
  void WriteJson(Context& context, const CheckReport& report) const {
    Json shards = Json::array();
    for (const ShardCheck& check : report.checks) {
      shards.push_back({{"job", check.key.job},
                        {"version", ToString(check.key.version)},
                        {"shard", ShardName(check.key.rank)},
                        {"tier", ToString(check.tier)},
                        {dirs_.empty() ? "node" : "data_dir", check.node},
                        {"bytes", check.bytes},
                        {"result", NameOf(check.verdict)},
                        {"decodable", check.decodable},
                        {"message", check.message}});
    }
    context.output.WriteJson("verify", {{"time", FormatUtc(context.clock.WallNanos())},
                                        {"deep", deep_},
                                        {"ok", ExitCodeOf(report) == ExitCode::kOk},
                                        {"left_out", report.left_out},
                                        {"notes", report.notes},
                                        {"committed", report.committed},
                                        {"contradictions", report.contradictions},
                                        {"shards", shards}});
  }

  void WriteText(Output& output, const CheckReport& report) const {
    Table table({{"JOB", false, true},
                 {"VERSION", false, false},
                 {"SHARD", false, false},
                 {"TIER", false, false},
                 {dirs_.empty() ? "NODE" : "DATA DIR", false, true},
                 {"SIZE", true, false},
                 {"RESULT", false, false}});
    for (const ShardCheck& check : report.checks) {
      table.Add({{check.key.job},
                 {ToString(check.key.version)},
                 {ShardName(check.key.rank)},
                 {std::string(ToString(check.tier))},
                 {check.node},
                 {FormatBytes(check.bytes)},
                 {NameOf(check.verdict), ToneOf(check.verdict)}});
    }
    if (!table.empty()) {
      output.WriteTable(table);
      output.Write("\n");
    }
    // Complete messages below the table: a cell may be cut, and would not name the chunk.
    for (const ShardCheck& check : report.checks) {
      if (check.verdict == Verdict::kOk) continue;
      output.Write(output.Tint(NameOf(check.verdict), ToneOf(check.verdict)) + " " +
                   Printable(ToString(check.key) + " (" + std::string(ToString(check.tier)) + ", " +
                             check.node + "): " + check.message) +
                   "\n");
    }
    for (const std::string& text : report.contradictions) {
      output.Write(output.Tint("NOT AS COMMITTED", Tone::kBad) + " " + Printable(text) + "\n");
    }
    for (const std::string& note : report.notes) output.Write("note: " + Printable(note) + "\n");
    output.Write(Summary(report, deep_) + "\n");
  }

  std::string job_;
  std::string version_;
  std::string sample_;
  bool deep_ = false;
  std::vector<std::string> dirs_;
};

}  // namespace

std::unique_ptr<Command> MakeVerifyCommand() { return std::make_unique<VerifyCommand>(); }

}  // namespace holdfast::cli
