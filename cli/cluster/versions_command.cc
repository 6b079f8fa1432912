#include <algorithm>

#include "base/config.h"
#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"
#include "coordinator/view/version_json.h"

namespace holdfast::cli {

namespace {

using view::ListedVersion;

constexpr const char* kVersionsFooter = R"(
TIERS: where the version was committed. AVAILABLE: where live nodes have all of its shards now.
RESTORABLE: whether a restart could restore it; -o wide adds the reason if not. SURVIVES: failures
after which the version could still be restored: "A + B" both at once, "A; B" either one. Aborted
versions, which never were complete, are shown only with --all. A version is disputed when ranks
that should have equal values had different ones; -o wide names tensors and ranks. A disputed
version can still be restored. VERIFIED (with -o wide): what the last `holdfast verify` of the
version found. COMMIT (with -o wide): the digest over the digests of all ranks' shards when the
version was committed.

Examples:
  holdfast versions                         every job
  holdfast versions my-job --restorable     only versions that can be restored now
  holdfast versions my-job --sort size      the largest first
  holdfast versions my-job -o json | jq -r '.versions[0].version'
)";

/// Committed versions that are not abandoned are plain, others faint or bad.
Cell VersionStateCell(const coordinator::VersionInfo& info) {
  std::string text = info.state() + (info.abandoned() ? " (abandoned)" : "");
  if (info.disputed_size() > 0) return {text + " (disputed)", Tone::kBad};
  return {text, info.state() == "committed" && !info.abandoned() ? Tone::kPlain : Tone::kFaint};
}

std::string WhyText(const coordinator::VersionInfo& info) {
  std::string text = info.why_not();
  for (const std::string& dispute : info.disputed()) text += (text.empty() ? "" : "; ") + dispute;
  return Printable(text);
}

/// The result and age of the last verification.
Cell VerifiedCell(const coordinator::VersionInfo& info, int64_t now) {
  if (!info.has_verification()) return {"-"};
  const coordinator::Verification& last = info.verification();
  const std::string result = view::VerificationResult(last);
  std::string text = result + (last.deep() ? "" : " (structure)");
  if (last.left_out() > 0) text += " (sample)";
  return {text + " " + AgeText(last.wall_nanos(), now) + " ago",
          result == "ok" ? Tone::kPlain : Tone::kBad};
}

class VersionsCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("versions", "The checkpoints of a job, newest first");
    command->footer(kVersionsFooter);
    command->add_option("JOB", job_, "Only this job")->check(NameCheck("job"));
    command->add_flag("--restorable", restorable_, "Only versions that can be restored now");
    command
        ->add_option("--sort", sort_,
                     "version (newest first), age (youngest first), size (largest first) or state")
        ->type_name("KEY")
        ->check(CLI::IsMember({"version", "age", "size", "state"}).description(""))
        ->capture_default_str();
    command->add_flag("-a,--all", all_, "Also aborted versions, which never were complete");
    command->add_flag("-r,--reverse", reverse_, "Reverse the order");
    watch_.AddTo(*command);
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    return RunWatched(context, watch_, [&]() { return Frame(context, client); });
  }

 private:
  Result<ExitCode> Frame(Context& context, CoordinatorClient& client) {
    HOLDFAST_ASSIGN_OR_RETURN(std::vector<std::string> jobs, client.Jobs(job_));
    std::vector<ListedVersion> listed;
    aborted_ = 0;
    for (const std::string& job : jobs) {
      HOLDFAST_ASSIGN_OR_RETURN(auto reply, client.ListVersions(job, restorable_));
      for (auto& info : *reply.mutable_versions()) {
        if (restorable_ && !info.restorable()) continue;
        // Aborted versions would hide the useful ones.
        if (info.state() == "aborted" && !all_) {
          ++aborted_;
          continue;
        }
        listed.push_back({job, std::move(info)});
      }
    }
    Sort(listed);
    Write(context, listed);
    return ExitCode::kOk;
  }

  /// Versions with equal keys are sorted newest first.
  void Sort(std::vector<ListedVersion>& listed) const {
    auto newer = [](const ListedVersion& a, const ListedVersion& b) {
      if (a.job != b.job) return a.job < b.job;
      return FromProto(a.info.version()) > FromProto(b.info.version());
    };
    std::stable_sort(listed.begin(), listed.end(), newer);
    if (sort_ == "age") {
      std::stable_sort(listed.begin(), listed.end(),
                       [](const ListedVersion& a, const ListedVersion& b) {
                         return a.info.wall_nanos() > b.info.wall_nanos();
                       });
    } else if (sort_ == "size") {
      std::stable_sort(listed.begin(), listed.end(),
                       [](const ListedVersion& a, const ListedVersion& b) {
                         return a.info.bytes() > b.info.bytes();
                       });
    } else if (sort_ == "state") {
      std::stable_sort(listed.begin(), listed.end(),
                       [](const ListedVersion& a, const ListedVersion& b) {
                         return a.info.state() < b.info.state();
                       });
    }
    if (reverse_) std::reverse(listed.begin(), listed.end());
  }

  void Write(Context& context, const std::vector<ListedVersion>& listed) const {
    Output& output = context.output;
    int64_t now = context.clock.WallNanos();
    if (output.json()) {
      context.output.WriteJson("versions", view::VersionsDocument(listed, aborted_, now));
      return;
    }
    std::vector<Column> columns;
    if (job_.empty()) columns.push_back({"JOB", false, true});
    columns.insert(columns.end(), {{"VERSION", false, false},
                                   {"STATE", false, false},
                                   {"TIERS", false, true},
                                   {"AVAILABLE", false, true},
                                   {"SIZE", true, false},
                                   {"WORLD", true, false},
                                   {"AGE", true, false},
                                   {"PINNED", false, false},
                                   {"RESTORABLE", false, false},
                                   {"SURVIVES", false, true}});
    if (output.wide()) {
      columns.insert(
          columns.end(),
          {{"COMMIT", false, false}, {"VERIFIED", false, false}, {"WHY NOT", false, true}});
    }
    Table table(columns);
    for (const ListedVersion& one : listed) {
      const auto& info = one.info;
      std::vector<Cell> row;
      if (job_.empty()) row.push_back({one.job});
      row.insert(row.end(), {{ToString(FromProto(info.version()))},
                             VersionStateCell(info),
                             {TiersText(info.committed_tiers())},
                             {TiersText(info.available_tiers())},
                             {FormatBytes(info.bytes())},
                             {std::to_string(info.world())},
                             {AgeText(info.wall_nanos(), now)},
                             {info.pinned() ? "yes" : "no"},
                             info.restorable() ? Cell{"yes", Tone::kGood} : Cell{"no"},
                             {info.survives().empty() ? "-" : info.survives()}});
      if (output.wide()) {
        row.insert(row.end(),
                   {{info.commit_digest() == 0 ? "-" : FormatDigest(info.commit_digest())},
                    VerifiedCell(info, now),
                    {WhyText(info)}});
      }
      table.Add(std::move(row));
    }
    if (table.empty()) {
      output.Write(restorable_ ? "no version can be restored now\n" : "no versions yet\n");
    } else {
      output.WriteTable(table);
    }
    if (aborted_ > 0) {
      output.Write(Count(aborted_, "aborted version") + " not shown: --all shows them\n");
    }
  }

  std::string job_;
  bool restorable_ = false;
  bool reverse_ = false;
  bool all_ = false;
  size_t aborted_ = 0;  // not shown
  std::string sort_ = "version";
  WatchOptions watch_;
};

}  // namespace

std::unique_ptr<Command> MakeVersionsCommand() { return std::make_unique<VersionsCommand>(); }

}  // namespace holdfast::cli
