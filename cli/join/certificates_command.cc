#include "cli/core/command.h"
#include "cli/core/text.h"
#include "cli/join/certificate_client.h"
#include "cli/join/commands.h"

namespace holdfast::cli {
namespace {

constexpr const char* kCertificatesFooter = R"(
Lists the names that joined the cluster or renewed their certificates, and the revoked names. A
certificate that another authority issued is not listed.

Examples:
  holdfast certificates
  holdfast revoke agent n3 --why "stolen disk"
)";

class CertificatesCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command =
        app.add_subcommand("certificates", "Names that have certificates, and revoked names");
    command->footer(kCertificatesFooter);
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(CertificateClient client,
                              CertificateClient::Open(context.options, context.clock));
    HOLDFAST_ASSIGN_OR_RETURN(const auto reply, client.ListIdentities());
    const int64_t now = context.clock.WallNanos();
    const auto state = [now](const coordinator::Identity& one) {
      if (one.revoked_s() != 0 && one.expires_wall_nanos() <= now) return "revoked";
      return one.expires_wall_nanos() <= now ? "ended" : "valid";
    };
    if (context.output.json()) {
      Json all = Json::array();
      for (const auto& one : reply.identities()) {
        all.push_back({{"role", one.role()},
                       {"name", one.name()},
                       {"state", state(one)},
                       {"issued_wall_nanos", one.issued_wall_nanos()},
                       {"expires_wall_nanos", one.expires_wall_nanos()},
                       {"why", one.why()}});
      }
      Json hashes = Json::array();
      for (const std::string& hash : reply.ca_hashes()) hashes.push_back(hash);
      context.output.WriteJson("certificates", {{"identities", all}, {"authorities", hashes}});
      return ExitCode::kOk;
    }
    Table table({{"ROLE", false, true},
                 {"NAME", false, true},
                 {"STATE", false, false},
                 {"ISSUED", false, false},
                 {"UNTIL", false, false},
                 {"WHY", false, true}});
    for (const auto& one : reply.identities()) {
      const bool issued = one.issued_wall_nanos() != 0;
      table.Add({{one.role()},
                 {one.name()},
                 {state(one)},
                 {issued ? FormatUtc(one.issued_wall_nanos()) : "-"},
                 {issued ? FormatUtc(one.expires_wall_nanos()) : "-"},
                 {one.why()}});
    }
    context.output.WriteTable(table);
    for (int i = 0; i < reply.ca_hashes_size(); ++i) {
      context.output.Write((i == 0 ? "authority " : "also accepted ") + reply.ca_hashes(i) + "\n");
    }
    return ExitCode::kOk;
  }
};

}  // namespace

std::unique_ptr<Command> MakeCertificatesCommand() {
  return std::make_unique<CertificatesCommand>();
}

}  // namespace holdfast::cli
