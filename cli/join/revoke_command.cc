#include <fmt/format.h>

#include "cli/core/command.h"
#include "cli/join/certificate_client.h"
#include "cli/join/commands.h"

namespace holdfast::cli {
namespace {

constexpr const char* kRevokeFooter = R"(
All certificates of the name that exist now are refused, within five seconds on every server that
reaches the coordinator, and cannot be renewed. The name may join again with a new token.

Examples:
  holdfast revoke agent n3 --why "stolen disk"
  holdfast revoke operator alice
)";

class RevokeCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("revoke", "Refuse the certificates of a name");
    command->footer(kRevokeFooter);
    command->add_option("ROLE", role_, "agent, relay, operator, runner or viewer")
        ->required()
        ->check(CLI::IsMember({"agent", "relay", "operator", "runner", "viewer"}).description(""));
    command->add_option("NAME", name_, "The name, as in `holdfast certificates`")
        ->required()
        ->check(NameCheck("name"));
    command->add_option("--why", why_, "The reason, for the record");
    command->add_flag("-y,--yes", yes_, "Do not ask");
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    const std::string question = fmt::format("Refuse all certificates of {} {}?", role_, name_);
    if (!Confirmed(context, question, yes_)) return ExitCode::kError;
    HOLDFAST_ASSIGN_OR_RETURN(CertificateClient client,
                              CertificateClient::Open(context.options, context.clock));
    HOLDFAST_RETURN_IF_ERROR(client.Revoke(role_, name_, why_));
    if (context.output.json()) {
      context.output.WriteJson("revoke", {{"role", role_}, {"name", name_}});
    } else {
      context.output.Write(fmt::format("the certificates of {} {} are revoked\n", role_, name_));
    }
    return ExitCode::kOk;
  }

 private:
  std::string role_;
  std::string name_;
  std::string why_;
  bool yes_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeRevokeCommand() { return std::make_unique<RevokeCommand>(); }

}  // namespace holdfast::cli
