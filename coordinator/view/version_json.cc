#include "coordinator/view/version_json.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "coordinator/api/convert.h"

namespace holdfast::view {

namespace {

using coord::FromProto;

/// Null: no verification is recorded. The result has the words of `holdfast verify`.
Json VerificationJson(const coordinator::VersionInfo& info) {
  if (!info.has_verification()) return nullptr;
  const coordinator::Verification& one = info.verification();
  return {{"time", TimeJson(one.wall_nanos())}, {"deep", one.deep()},
          {"result", VerificationResult(one)},  {"ok", one.ok()},
          {"damaged", one.damaged()},           {"missing", one.missing()},
          {"unchecked", one.unchecked()},       {"left_out", one.left_out()}};
}

/// Null: the version is not committed, or the coordinator is older.
Json CommitJson(const coordinator::VersionInfo& info) {
  if (info.commit_digest() == 0) return nullptr;
  return fmt::format("{:016x}", info.commit_digest());
}

/// The JSON form of one version. Ages are by this machine's clock, and never negative.
Json ToJson(const ListedVersion& listed, int64_t now) {
  const auto& info = listed.info;
  VersionId version = FromProto(info.version());
  int64_t age = info.wall_nanos() == 0 ? 0 : std::max<int64_t>(0, now - info.wall_nanos());
  return {{"job", listed.job},
          {"version", ToString(version)},
          {"incarnation", version.incarnation.value},
          {"step", version.step.value},
          {"survives", info.survives()},
          {"state", info.state()},
          {"abandoned", info.abandoned()},
          {"tiers", TiersJson(info.committed_tiers())},
          {"available", TiersJson(info.available_tiers())},
          {"bytes", info.bytes()},
          {"world", info.world()},
          {"time", TimeJson(info.wall_nanos())},
          {"age_seconds", age / 1'000'000'000},
          {"pinned", info.pinned()},
          {"restorable", info.restorable()},
          {"why_not", info.why_not()},
          {"verification", VerificationJson(info)},
          {"commit_digest", CommitJson(info)},
          {"disputed", std::vector<std::string>(info.disputed().begin(), info.disputed().end())}};
}

}  // namespace

std::string VerificationResult(const coordinator::Verification& verification) {
  if (verification.damaged() > 0) return "DAMAGED";
  if (verification.missing() > 0) return "MISSING";
  return verification.unchecked() > 0 ? "UNCHECKED" : "ok";
}

Json VersionsDocument(const std::vector<ListedVersion>& listed, size_t left_out,
                      int64_t now_wall_nanos) {
  Json versions = Json::array();
  for (const ListedVersion& one : listed) versions.push_back(ToJson(one, now_wall_nanos));
  return {
      {"time", FormatUtc(now_wall_nanos)}, {"versions", versions}, {"aborted_left_out", left_out}};
}

}  // namespace holdfast::view
