#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "base/certificates/authority.h"
#include "base/certificates/certificate.h"
#include "base/certificates/private_key.h"
#include "base/endpoint.h"
#include "cli/core/command.h"
#include "cli/join/commands.h"
#include "cli/join/layout.h"

namespace holdfast::cli {
namespace {
using certificates::Authority;
using certificates::Certificate;

constexpr const char* kClusterFooter = R"(
These commands need no coordinator: they read and write the files of the authority on its machine.

init      makes the authority, the coordinator's certificate and configuration, and the certificate
          of the first operator
issue     issues one certificate with the authority's key: for further coordinators, for relays, and
          for an operator when no operator has a valid certificate
rotate-ca replaces the authority on a running cluster, in three steps; see docs/security.md

Examples:
  holdfast cluster init --listen node-1:7070
  holdfast cluster issue --role coordinator --name node-2 --out node-2.pem
  holdfast cluster issue --role relay --name relay-1 --host relay-1 --out relay-1.pem
  holdfast cluster rotate-ca begin
)";

constexpr int64_t kNanosASecond = 1'000'000'000;
constexpr int64_t kValiditySeconds = 86'400;
constexpr int kJoinPort = 7073;
constexpr mode_t kStateMode = 0700;
constexpr mode_t kPublicMode = 0644;
constexpr mode_t kSecretMode = 0600;

class ClusterCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command = app.add_subcommand("cluster", "Make a cluster and its authority");
    command->footer(kClusterFooter);
    command->require_subcommand(1);
    init_ = command->add_subcommand("init", "Make the authority and the coordinator's certificate");
    init_->add_option("--listen", listen_, "Where agents and operators connect: HOST:PORT")
        ->required()
        ->check(EndpointCheck());
    init_->add_option("--join-listen", join_listen_,
                      "Where machines join: HOST:PORT; default: port 7073 of the same host");
    init_->add_option("--cluster", cluster_, "Name of the cluster")
        ->check(NameCheck("cluster"))
        ->capture_default_str();
    init_->add_option("--host", hosts_,
                      "Further host names and addresses in the coordinator's certificate");
    init_->add_option("--operator", operator_, "Name of the first operator")
        ->check(NameCheck("operator"))
        ->capture_default_str();
    issue_ = command->add_subcommand("issue", "Issue one certificate with the authority's key");
    issue_->add_option("--role", role_, "coordinator, relay, agent, operator, runner or viewer")
        ->required()
        ->check(CLI::IsMember({"coordinator", "relay", "agent", "operator", "runner", "viewer"})
                    .description(""));
    issue_->add_option("--name", name_, "Name of the machine or person")
        ->required()
        ->check(NameCheck("name"));
    issue_->add_option("--host", hosts_, "Host names and addresses in the certificate");
    issue_->add_option("--cluster", cluster_, "Name of the cluster")
        ->check(NameCheck("cluster"))
        ->capture_default_str();
    issue_->add_option("--valid", valid_, "How long the certificate is valid")
        ->type_name("DURATION")
        ->check(DurationCheck())
        ->capture_default_str();
    issue_->add_option("--out", out_, "File that gets the certificate, the authority and the key")
        ->required();
    rotate_ = command->add_subcommand("rotate-ca", "Replace the authority, in three steps");
    rotate_->add_option("STEP", step_, "begin, switch or finish")
        ->required()
        ->check(CLI::IsMember({"begin", "switch", "finish"}).description(""));
    rotate_->add_option("--cluster", cluster_, "Name of the cluster")
        ->check(NameCheck("cluster"))
        ->capture_default_str();
    for (CLI::App* one : {init_, issue_, rotate_}) {
      one->footer(kClusterFooter);
      one->add_option("--config-dir", layout_.config_dir, "Folder of the configuration")
          ->capture_default_str();
      one->add_option("--state-dir", layout_.state_dir, "Folder of the authority")
          ->capture_default_str();
      one->add_option("--user", layout_.user,
                      "User of the coordinator; default: holdfast, if there is one");
    }
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    HOLDFAST_ASSIGN_OR_RETURN(owner_, OwnerOf(layout_));
    now_ = context.clock.WallNanos() / kNanosASecond;
    if (init_->parsed()) return Init(context);
    return issue_->parsed() ? IssueOne(context) : Rotate(context);
  }

 private:
  /// Issues a certificate for a new key; returns both, with the authority between them.
  Result<std::string> MakeIdentity(const Authority& authority, const std::string& role,
                                   const std::string& name, const std::vector<std::string>& hosts,
                                   int64_t validity_s) const {
    HOLDFAST_ASSIGN_OR_RETURN(const auto key, certificates::PrivateKey::Generate());
    const certificates::Issue issue{certificates::SpiffeUri(cluster_, role, name), hosts,
                                    now_ - certificates::kBackdateSeconds, now_ + validity_s};
    HOLDFAST_ASSIGN_OR_RETURN(const auto made, authority.Sign(key.get(), issue));
    return made.ToPem() + authority.certificate().ToPem() + key.ToPem();
  }

  Result<Authority> LoadAuthority(const std::string& key_path) const {
    HOLDFAST_ASSIGN_OR_RETURN(const auto bundle, certificates::ReadSmallFile(layout_.ca()));
    HOLDFAST_ASSIGN_OR_RETURN(const auto key, certificates::ReadSmallFile(key_path));
    return Authority::Load(bundle, key);
  }

  Result<ExitCode> Init(Context& context) {
    HOLDFAST_ASSIGN_OR_RETURN(const Endpoint listen, ParseEndpoint(listen_));
    if (listen.kind != Endpoint::Kind::kTcp || listen.port == 0) {
      return Fail(InvalidArgumentError("--listen: use HOST:PORT, as other machines reach it"));
    }
    if (listen.host == "0.0.0.0" || listen.host == "::") {
      return Fail(InvalidArgumentError(
          "--listen: name the host as other machines reach it; the certificate names it"));
    }
    Endpoint join = listen;
    join.port = kJoinPort;
    if (!join_listen_.empty()) {
      HOLDFAST_ASSIGN_OR_RETURN(join, ParseEndpoint(join_listen_));
    }
    std::error_code error;
    if (std::filesystem::exists(layout_.ca_key(), error)) {
      return Fail(AlreadyExistsError(fmt::format(
          "{} is the key of a cluster's authority. To replace the authority of a running cluster, "
          "see `holdfast cluster rotate-ca --help`; to begin a new cluster, move {} away",
          layout_.ca_key(), layout_.state_dir)));
    }
    HOLDFAST_RETURN_IF_ERROR(MakeFolder(layout_.state_dir, kStateMode, owner_));
    HOLDFAST_RETURN_IF_ERROR(MakeFolder(layout_.config_dir, 0755, std::nullopt));
    HOLDFAST_ASSIGN_OR_RETURN(const Authority authority, Authority::Create(cluster_, now_));
    const std::string ca = authority.certificate().ToPem();
    std::vector<std::string> hosts = {listen.host};
    if (join.host != listen.host) hosts.push_back(join.host);
    hosts.insert(hosts.end(), hosts_.begin(), hosts_.end());
    const std::string name =
        ValidateName("host", listen.host).ok() ? listen.host : std::string("coordinator");
    HOLDFAST_ASSIGN_OR_RETURN(const auto server,
                              MakeIdentity(authority, std::string(certificates::kCoordinatorRole),
                                           name, hosts, kValiditySeconds));
    HOLDFAST_ASSIGN_OR_RETURN(const auto person,
                              MakeIdentity(authority, "operator", operator_, {}, kValiditySeconds));
    // The key is the last of the authority's files: as long as it is missing, init may run again.
    const std::string identity = layout_.identity(certificates::kCoordinatorRole);
    HOLDFAST_RETURN_IF_ERROR(certificates::ReplaceFile(layout_.ca(), ca, kPublicMode, owner_));
    HOLDFAST_RETURN_IF_ERROR(certificates::ReplaceFile(identity, server, kSecretMode, owner_));
    HOLDFAST_RETURN_IF_ERROR(WriteOperator(layout_, listen.ToString(), ca, person));
    HOLDFAST_RETURN_IF_ERROR(WriteConfig(
        layout_.config("coordinator"),
        fmt::format("# Written by `holdfast cluster init`. `holdfast-coordinator --print-config` "
                    "shows all keys.\n"
                    "cluster = {}\nlisten = {}\n\n[tls]\nca = {}\ncert = {}\nkey = {}\n\n"
                    "[join]\nlisten = {}\nca_key = {}\n",
                    Quoted(cluster_), Quoted(listen.ToString()), Quoted(layout_.ca()),
                    Quoted(identity), Quoted(identity), Quoted(join.ToString()),
                    Quoted(layout_.ca_key()))));
    HOLDFAST_RETURN_IF_ERROR(
        certificates::ReplaceFile(layout_.ca_key(), authority.key().ToPem(), kSecretMode, owner_));
    const std::string hash = authority.certificate().Hash();
    if (context.output.json()) {
      context.output.WriteJson("cluster", {{"cluster", cluster_},
                                           {"authority", hash},
                                           {"config", layout_.config("coordinator")},
                                           {"join", join.ToString()}});
      return ExitCode::kOk;
    }
    context.output.Write(fmt::format(
        "cluster {}, authority {}\n"
        "wrote {}, and its key {}: the key can make any certificate; keep a copy offline\n"
        "wrote {} and {}\n"
        "next: systemctl enable --now holdfast-coordinator\n"
        "then, for each node: holdfast token create --role agent --node NAME\n",
        cluster_, hash, layout_.ca(), layout_.ca_key(), layout_.config("coordinator"),
        layout_.cli_config()));
    return ExitCode::kOk;
  }

  Result<ExitCode> IssueOne(Context& context) {
    HOLDFAST_ASSIGN_OR_RETURN(const int64_t valid_ms, ParseDurationMs(valid_));
    HOLDFAST_ASSIGN_OR_RETURN(const Authority authority, LoadAuthority(layout_.ca_key()));
    std::vector<std::string> hosts = hosts_;
    if (hosts.empty() && (role_ == "agent" || role_ == "coordinator")) hosts.push_back(name_);
    HOLDFAST_ASSIGN_OR_RETURN(
        const auto identity,
        MakeIdentity(authority, role_, name_, hosts, std::max<int64_t>(valid_ms / 1000, 1)));
    HOLDFAST_RETURN_IF_ERROR(certificates::ReplaceFile(out_, identity, kSecretMode));
    context.output.Write(
        fmt::format("wrote {}: {}\n", out_, certificates::SpiffeUri(cluster_, role_, name_)));
    return ExitCode::kOk;
  }

  Result<ExitCode> Rotate(Context& context) {
    if (step_ == "begin") return BeginRotation(context);
    return step_ == "switch" ? SwitchAuthority(context) : FinishRotation(context);
  }

  /// Adds an authority to those that the cluster accepts. A repetition changes nothing.
  Result<ExitCode> BeginRotation(Context& context) {
    HOLDFAST_ASSIGN_OR_RETURN(const std::string bundle, certificates::ReadSmallFile(layout_.ca()));
    std::error_code error;
    if (std::filesystem::exists(layout_.next_ca_key(), error)) {
      if (LoadAuthority(layout_.next_ca_key())) {
        context.output.Write("the next authority is already accepted\n");
        return ExitCode::kOk;
      }
    }
    HOLDFAST_ASSIGN_OR_RETURN(const Authority next, Authority::Create(cluster_, now_));
    HOLDFAST_RETURN_IF_ERROR(
        certificates::ReplaceFile(layout_.next_ca_key(), next.key().ToPem(), kSecretMode, owner_));
    HOLDFAST_RETURN_IF_ERROR(certificates::ReplaceFile(
        layout_.ca(), bundle + next.certificate().ToPem(), kPublicMode, owner_));
    context.output.Write(fmt::format(
        "the cluster also accepts authority {}\n"
        "next, when every node is up and each operator has run a command since (a day at most): "
        "holdfast cluster rotate-ca switch\n",
        next.certificate().Hash()));
    return ExitCode::kOk;
  }

  /// Certificates are issued by the next authority from now on, and renewed with it.
  Result<ExitCode> SwitchAuthority(Context& context) {
    auto next = LoadAuthority(layout_.next_ca_key());
    if (!next) {
      return Fail(
          FailedPreconditionError("there is no next authority: begin with `holdfast cluster "
                                  "rotate-ca begin` (" +
                                  next.error().message() + ")"));
    }
    if (::rename(layout_.next_ca_key().c_str(), layout_.ca_key().c_str()) != 0) {
      return Fail(ErrnoStatus(errno, "rename " + layout_.next_ca_key()));
    }
    // Again through a synced replacement, so that the new name is durable.
    HOLDFAST_RETURN_IF_ERROR(
        certificates::ReplaceFile(layout_.ca_key(), next->key().ToPem(), kSecretMode, owner_));
    context.output.Write(fmt::format(
        "authority {} issues all certificates now; running servers renew theirs within seconds\n"
        "next, when `holdfast certificates` shows no older certificate that you need (a day at "
        "most): holdfast cluster rotate-ca finish\n",
        next->certificate().Hash()));
    return ExitCode::kOk;
  }

  /// Only the issuing authority is accepted from now on.
  Result<ExitCode> FinishRotation(Context& context) {
    std::error_code error;
    if (std::filesystem::exists(layout_.next_ca_key(), error)) {
      return Fail(FailedPreconditionError("run `holdfast cluster rotate-ca switch` first"));
    }
    HOLDFAST_ASSIGN_OR_RETURN(const Authority authority, LoadAuthority(layout_.ca_key()));
    HOLDFAST_RETURN_IF_ERROR(certificates::ReplaceFile(
        layout_.ca(), authority.certificate().ToPem(), kPublicMode, owner_));
    context.output.Write(
        fmt::format("the cluster accepts authority {} only\n", authority.certificate().Hash()));
    return ExitCode::kOk;
  }

  CLI::App* init_ = nullptr;
  CLI::App* issue_ = nullptr;
  CLI::App* rotate_ = nullptr;
  Layout layout_;
  std::optional<certificates::FileOwner> owner_;
  int64_t now_ = 0;
  std::string cluster_ = "holdfast";
  std::string listen_;
  std::string join_listen_;
  std::vector<std::string> hosts_;
  std::string operator_ = "admin";
  std::string role_;
  std::string name_;
  std::string valid_ = "24h";
  std::string out_;
  std::string step_;
};

}  // namespace

std::unique_ptr<Command> MakeClusterCommand() { return std::make_unique<ClusterCommand>(); }

}  // namespace holdfast::cli
