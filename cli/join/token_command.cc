#include <fmt/format.h>

#include "cli/core/command.h"
#include "cli/join/certificate_client.h"
#include "cli/join/commands.h"

namespace holdfast::cli {
namespace {

constexpr const char* kTokenFooter = R"(
A token lets one machine or person join the cluster once, with `holdfast join`. It contains a
secret: pass it on over a channel that you trust, and create it shortly before its use. The command
prints one line on stdout, and how to use it on stderr.

Examples:
  holdfast token create --role agent --node n3     for the machine n3 only
  holdfast token create --role agent --ttl 1h      for any machine without a certificate
  holdfast token create --role operator --node alice
)";

class TokenCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("token", "Create a token with which a machine joins");
    command->footer(kTokenFooter);
    command->require_subcommand(1);
    CLI::App* create = command->add_subcommand("create", "Create a token and print it");
    create->footer(kTokenFooter);
    create->add_option("--role", role_, "What joins: agent, operator, runner or viewer")
        ->required()
        ->check(CLI::IsMember({"agent", "operator", "runner", "viewer"}).description(""));
    create->add_option("--node,--name", name_, "The only node or person that may use the token")
        ->check(NameCheck("node"));
    create->add_option("--ttl", ttl_, "How long the token is valid, at most 168h")
        ->type_name("DURATION")
        ->check(DurationCheck())
        ->capture_default_str();
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(const int64_t ttl_ms, ParseDurationMs(ttl_));
    HOLDFAST_ASSIGN_OR_RETURN(CertificateClient client,
                              CertificateClient::Open(context.options, context.clock));
    HOLDFAST_ASSIGN_OR_RETURN(const auto reply,
                              client.CreateToken(role_, name_, (ttl_ms + 999) / 1000));
    if (context.output.json()) {
      context.output.WriteJson("token", {{"token", reply.token()},
                                         {"role", role_},
                                         {"name", name_},
                                         {"join", reply.join_address()},
                                         {"expires", FormatUtc(reply.expires_wall_nanos())}});
      return ExitCode::kOk;
    }
    context.output.Write(reply.token() + "\n");
    PrintMessage(
        fmt::format("valid once, until {}; on the machine that joins: holdfast join {} "
                    "TOKEN",
                    FormatUtc(reply.expires_wall_nanos()), reply.join_address()));
    return ExitCode::kOk;
  }

 private:
  std::string role_;
  std::string name_;
  std::string ttl_ = "15m";
};

}  // namespace

std::unique_ptr<Command> MakeTokenCommand() { return std::make_unique<TokenCommand>(); }

}  // namespace holdfast::cli
