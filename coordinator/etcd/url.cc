#include "coordinator/etcd/url.h"

#include <fmt/format.h>

#include "base/ids.h"

namespace holdfast::coord {
namespace {
constexpr std::string_view kScheme = "etcd://";

Status BadUrl(std::string_view text, std::string_view why) {
  return InvalidArgumentError(
      fmt::format("store '{}': {}; use etcd://HOST:PORT,HOST:PORT,HOST:PORT or "
                  "etcd://HOST:PORT,…/FOLDER",
                  text, why));
}
}  // namespace

std::string EtcdUrl::PrefixOf(const std::string& cluster) const {
  return "/" + folder + "/" + cluster + "/";
}

bool IsEtcdUrl(std::string_view text) { return text.starts_with(kScheme); }

Result<EtcdUrl> ParseEtcdUrl(std::string_view text) {
  if (!IsEtcdUrl(text)) return Fail(BadUrl(text, "not an etcd address"));
  std::string_view rest = text.substr(kScheme.size());
  EtcdUrl url;
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    url.folder = std::string(rest.substr(slash + 1));
    rest = rest.substr(0, slash);
    if (!ValidateName("folder", url.folder).ok()) {
      return Fail(BadUrl(text, "the folder must be letters, digits, '.', '_' or '-'"));
    }
  }
  for (;;) {
    const size_t comma = rest.find(',');
    auto member = ParseEndpoint(rest.substr(0, comma));
    if (!member) return Fail(BadUrl(text, member.error().message()));
    if (member->kind == Endpoint::Kind::kTcp && member->port == 0) {
      return Fail(BadUrl(text, "a member has no port"));
    }
    url.members.push_back(*std::move(member));
    if (comma == std::string_view::npos) return url;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace holdfast::coord
