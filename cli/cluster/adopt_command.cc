#include <fmt/format.h>
#include <pwd.h>

#include <array>
#include <charconv>
#include <optional>

#include "base/config.h"
#include "cli/cluster/commands.h"
#include "cli/cluster/coordinator_client.h"
#include "cli/core/command.h"
#include "cli/core/text.h"
#include "cli/core/version_json.h"

namespace holdfast::cli {

namespace {

constexpr const char* kAdoptFooter = R"(
A coordinator whose store was lost, or was restored from a backup, begins a new life. Nodes keep
their shards of the life before, but these do not count, since it is unknown which versions were
committed. This command adopts the versions that are provably complete: every rank has a replica on
an attached node, of one life, with one digest, or its parity group can decode the shard. COMMIT
shows whether a node knows that the version was committed: "proved" if its shards are the committed
ones. Versions that older releases saved are never known as committed. Adopted versions are restored
like any other, and shards that are missing are rebuilt.

Attach all nodes first, and run it with --dry-run. A running job is not affected.

The store has the owners of jobs, and nodes do not. A job whose record was lost has no owner: only
root and operators can use it, until --owner names its user.

Examples:
  holdfast status                       OTHER_LIFE: shards of another life
  holdfast adopt --dry-run
  holdfast adopt my-job --owner alice
)";

/// Returns the number of a user of this machine; a number names itself.
Result<uint32_t> UserNumber(const std::string& user) {
  uint32_t number = 0;
  const char* end = user.data() + user.size();
  const auto parsed = std::from_chars(user.data(), end, number);
  if (parsed.ec == std::errc() && parsed.ptr == end && number != ~0U) return number;
  std::array<char, 16'384> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  ::getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) return Fail(NotFoundError("no user '" + user + "' on this machine"));
  return found->pw_uid;
}

class AdoptCommand : public Command {
 public:
  CLI::App* AddTo(CLI::App& app) override {
    CLI::App* command =
        app.add_subcommand("adopt", "Adopt versions of an earlier life of the store");
    command->footer(kAdoptFooter);
    command->add_option("JOB", job_, "Only this job")->check(NameCheck("job"));
    command->add_option("--life", life_, "Only this life, as shown by --dry-run");
    command->add_option("--owner", owner_,
                        "User that JOB belongs to from now on: a name or a number");
    command->add_flag("--dry-run", dry_run_,
                      "Show which versions would be adopted, change nothing");
    return command;
  }

  Result<ExitCode> Run(Context& context) override {
    LifeId life;
    if (!life_.empty()) {
      HOLDFAST_ASSIGN_OR_RETURN(life, ParseLifeId(life_));
    }
    std::optional<uint32_t> owner;
    if (!owner_.empty()) {
      if (job_.empty()) return Fail(InvalidArgumentError("--owner needs a JOB"));
      HOLDFAST_ASSIGN_OR_RETURN(owner, UserNumber(owner_));
    }
    HOLDFAST_ASSIGN_OR_RETURN(CoordinatorClient client,
                              CoordinatorClient::Open(context.options, context.clock));
    HOLDFAST_ASSIGN_OR_RETURN(const auto reply, client.Adopt(job_, life, dry_run_, owner));
    Write(context, reply);
    int adopted = 0;
    for (const auto& version : reply.versions()) adopted += version.why_not().empty() ? 1 : 0;
    if (adopted != 0 || (owner && !dry_run_)) return ExitCode::kOk;
    return reply.versions().empty() ? ExitCode::kNotFound : ExitCode::kFinding;
  }

 private:
  /// What nodes know of the commit; empty: an older coordinator does not report it.
  static std::string CommitText(const coordinator::AdoptedVersion& one) {
    switch (one.commit()) {
      case 1:
        return one.why_not().empty() ? "complete, never known as committed" : "not known";
      case 2:
        return "committed";
      case 3:
        return "committed, proved";
      case 4:
        return "contradicted";
      default:
        return "";
    }
  }

  void Write(Context& context, const coordinator::AdoptReply& reply) const {
    Output& output = context.output;
    if (output.json()) {
      Json versions = Json::array();
      for (const auto& one : reply.versions()) {
        versions.push_back({{"job", one.job()},
                            {"version", ToString(FromProto(one.version()))},
                            {"life", ToString(LifeId{one.life()})},
                            {"world", one.world()},
                            {"ranks", one.ranks()},
                            {"decoded", one.decoded()},
                            {"bytes", one.bytes()},
                            {"commit", CommitText(one)},
                            {"taken", one.why_not().empty() && !dry_run_},
                            {"why_not", one.why_not()}});
      }
      output.WriteJson("adopt", {{"dry_run", dry_run_}, {"versions", versions}});
      return;
    }
    if (reply.versions().empty()) {
      output.Write("the attached nodes have no version of another life\n");
      return;
    }
    Table table({{"JOB", false, true},
                 {"VERSION", false, false},
                 {"LIFE", false, false},
                 {"RANKS", true, false},
                 {"SIZE", true, false},
                 {"TIERS", false, false},
                 {"COMMIT", false, true},
                 {"RESULT", false, true}});
    for (const auto& one : reply.versions()) {
      const std::string parity = one.decoded() == 0 ? ""
                                                    : fmt::format(", {} of {} ranks from parity",
                                                                  one.decoded(), one.world());
      const Cell result = !one.why_not().empty() ? Cell{"skipped: " + one.why_not(), Tone::kWarn}
                          : dry_run_             ? Cell{"would be adopted" + parity}
                                                 : Cell{"adopted" + parity, Tone::kGood};
      table.Add({{one.job()},
                 {ToString(FromProto(one.version()))},
                 {ToString(LifeId{one.life()})},
                 {fmt::format("{}/{}", one.ranks(), one.world())},
                 {FormatBytes(one.bytes())},
                 {TiersText(one.tiers())},
                 {CommitText(one)},
                 result});
    }
    output.WriteTable(table);
  }

  std::string job_;
  std::string life_;
  std::string owner_;
  bool dry_run_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeAdoptCommand() { return std::make_unique<AdoptCommand>(); }

}  // namespace holdfast::cli
