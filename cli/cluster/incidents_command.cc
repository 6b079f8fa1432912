#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"
#include "coordinator/view/incident_json.h"

namespace holdfast::cli {

namespace {

constexpr const char* kIncidentsFooter = R"(
DETECTED, RECOVERED: time from the last sign of health to the detection, and to the first version
that was committed afterwards. LOST: steps that were trained again.

Examples:
  holdfast incidents                   of all jobs, the newest first
  holdfast incidents --job gpt
  holdfast incidents show 12           evidence, actions and times of one incident
  holdfast incidents --ack 12 --why "the job was cancelled"    no further action is taken
  holdfast incidents -o json | jq '.incidents[] | select(.state == "open")'
)";

using coordinator::Incident;

Cell IncidentStateCell(const Incident& incident) {
  const Tone tone = incident.state() == "open"        ? Tone::kWarn
                    : incident.state() == "given up"  ? Tone::kBad
                    : incident.state() == "recovered" ? Tone::kGood
                                                      : Tone::kPlain;
  return {incident.state(), tone};
}

class IncidentsCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("incidents", "Faults, and how they were handled");
    command->footer(kIncidentsFooter);
    command->add_option("--job", job_, "Only incidents of this job")->check(NameCheck("job"));
    command->add_option("--ack", acknowledged_,
                        "Acknowledge this incident: no further action is taken, also not by "
                        "restart.command");
    command->add_option("--why", why_, "With --ack: the reason, for the record");
    watch_.AddTo(*command);
    show_ = command->add_subcommand("show", "One incident in full");
    show_->add_option("ID", id_, "The incident's number")->required();
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    if (show_->parsed()) return Show(context, client);
    if (acknowledged_ != 0) {
      HOLDFAST_RETURN_IF_ERROR(client.AcknowledgeIncident(acknowledged_, why_));
      id_ = acknowledged_;
      return Show(context, client);
    }
    return RunWatched(context, watch_, [&]() { return List(context, client); });
  }

 private:
  Result<ExitCode> List(Context& context, CoordinatorClient& client) const {
    HOLDFAST_ASSIGN_OR_RETURN(auto reply, client.ListIncidents(job_, 0));
    const int64_t now = context.clock.WallNanos();
    if (context.output.json()) {
      context.output.WriteJson("incidents", view::IncidentsDocument(reply, now));
      return ExitCode::kOk;
    }
    Table table({{"ID", true, false},
                 {"AGE", true, false},
                 {"JOB", false, true},
                 {"KIND", false, true},
                 {"STATE", false, false},
                 {"DETECTED", true, false},
                 {"RECOVERED", true, false},
                 {"LOST", true, false},
                 {"WHAT", false, true}});
    for (const Incident& incident : reply.incidents()) {
      table.Add({{std::to_string(incident.id())},
                 {AgeText(incident.wall_nanos(), now)},
                 {incident.job().empty() ? "-" : incident.job()},
                 {incident.kind()},
                 IncidentStateCell(incident),
                 {FormatSeconds(AnyNumber(incident.detect_ms()))},
                 {FormatSeconds(AnyNumber(incident.first_step_ms()))},
                 {incident.lost_steps() < 0 ? "-" : std::to_string(incident.lost_steps())},
                 {incident.what()}});
    }
    if (table.empty()) {
      context.output.Write("no incidents\n");
    } else {
      context.output.WriteTable(table);
    }
    return ExitCode::kOk;
  }

  Result<ExitCode> Show(Context& context, CoordinatorClient& client) const {
    HOLDFAST_ASSIGN_OR_RETURN(auto reply, client.ListIncidents("", id_));
    if (reply.incidents_size() != 1) {
      return Fail(NotFoundError(fmt::format("there is no incident {}", id_)));
    }
    const Incident& incident = reply.incidents(0);
    if (context.output.json()) {
      context.output.WriteJson("incident", view::IncidentJson(incident));
      return ExitCode::kOk;
    }
    std::string text =
        fmt::format("incident {}  {}  {}\n{}\n\n", incident.id(), incident.kind(),
                    context.output.Tint(incident.state(), IncidentStateCell(incident).tone),
                    Printable(incident.what()));
    const auto line = [&text](std::string_view name, const std::string& value) {
      if (!value.empty()) text += fmt::format("{:<12}{}\n", name, value);
    };
    line("job", incident.job());
    line("since", FormatUtc(incident.wall_nanos()));
    line("ranks", fmt::format("{}", fmt::join(incident.ranks(), ", ")));
    line("nodes", fmt::format("{}", fmt::join(incident.nodes(), ", ")));
    line("plan", Printable(incident.plan()));
    const std::optional<VersionId> restored = AnyVersion(incident.restored());
    if (restored) line("restored", ToString(*restored));
    if (incident.lost_steps() >= 0) line("steps lost", std::to_string(incident.lost_steps()));
    text += "\n";
    const std::pair<const char*, std::optional<int64_t>> times[] = {
        {"detected", AnyNumber(incident.detect_ms())},
        {"decided", AnyNumber(incident.decide_ms())},
        {"stopped", AnyNumber(incident.stop_ms())},
        {"placed", view::PlaceMs(incident)},
        {"restored", AnyNumber(incident.restore_ms())},
        {"first step", AnyNumber(incident.first_step_ms())}};
    for (const auto& [name, ms] : times) line(name, FormatSeconds(ms));
    for (const std::string& evidence : incident.evidence()) {
      text += "\n";
      for (size_t begin = 0; begin < evidence.size();) {
        const size_t end = std::min(evidence.find('\n', begin), evidence.size());
        text += "  " + Printable(evidence.substr(begin, end - begin)) + "\n";
        begin = end + 1;
      }
    }
    context.output.Write(text);
    return ExitCode::kOk;
  }

  std::string job_;
  uint64_t id_ = 0;
  uint64_t acknowledged_ = 0;
  std::string why_;
  CLI::App* show_ = nullptr;
  WatchOptions watch_;
};

}  // namespace

std::unique_ptr<Command> MakeIncidentsCommand() { return std::make_unique<IncidentsCommand>(); }

}  // namespace holdfast::cli
