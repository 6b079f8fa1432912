#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "cli/core/options.h"
#include "cli/core/text.h"

namespace holdfast::cli {

namespace {

constexpr const char* kAuditFooter = R"(
Every call that changes the cluster is recorded: who made it, from where, with which request, and
with which outcome. OUTCOME is "not known" where the coordinator ended during the call. The
coordinator keeps the newest records, up to 32 MiB. Only operators can read them.

Examples:
  holdfast audit                      all records, oldest first
  holdfast audit --since 24h          those of the last day
  holdfast audit -o json | jq -r '.records[] | select(.method == "ForgetJob").who'
)";

class AuditCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("audit", "Who changed what, and when");
    command->footer(kAuditFooter);
    command->add_option("--since", since_, "Only the records of this time until now, e.g. 24h")
        ->check(DurationCheck());
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    int64_t from = 0;
    if (!since_.empty()) {
      HOLDFAST_ASSIGN_OR_RETURN(const int64_t since_ms, ParseDurationMs(since_));
      from = context.clock.WallNanos() - since_ms * 1'000'000;
    }
    HOLDFAST_ASSIGN_OR_RETURN(const std::vector<std::string> lines, client.GetAudit(from));
    nlohmann::json records = nlohmann::json::array();
    std::map<uint64_t, std::string> outcomes;  // by the number of the record that began the call
    for (const std::string& line : lines) {
      auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!record.is_object()) continue;
      if (record.contains("begun")) {
        outcomes[record.value("begun", uint64_t{0})] = record.value("outcome", "");
      } else {
        records.push_back(std::move(record));
      }
    }
    for (auto& record : records) {
      const auto outcome = outcomes.find(record.value("number", uint64_t{0}));
      record["outcome"] = outcome == outcomes.end() ? "not known" : outcome->second;
    }
    Write(context, records);
    return ExitCode::kOk;
  }

 private:
  static void Write(Context& context, const nlohmann::json& records) {
    if (context.output.json()) {
      context.output.WriteJson("audit", {{"records", records}});
      return;
    }
    Table table({{"AT", false, false},
                 {"METHOD", false, false},
                 {"WHO", false, true},
                 {"FROM", false, true},
                 {"OUTCOME", false, true},
                 {"REQUEST", false, true}});
    for (const auto& record : records) {
      const auto text = [&](const char* key) { return record.value(key, std::string()); };
      const std::string request = record.contains("what") ? record["what"].dump() : "";
      table.Add({{text("at")},
                 {text("method")},
                 {text("who")},
                 {text("from")},
                 {text("outcome")},
                 {request}});
    }
    if (table.empty()) {
      context.output.Write("no call is recorded\n");
    } else {
      context.output.WriteTable(table);
    }
  }

  std::string since_;
};

}  // namespace

std::unique_ptr<Command> MakeAuditCommand() { return std::make_unique<AuditCommand>(); }

}  // namespace holdfast::cli
