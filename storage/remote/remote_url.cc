#include "storage/remote/remote_url.h"

#include <fmt/format.h>

#include <filesystem>

namespace holdfast {

Result<std::string> ParseRemoteUrl(std::string_view url) {
  constexpr std::string_view kScheme = "file://";
  const auto refuse = [&](std::string_view why) {
    return Fail(InvalidArgumentError(
        fmt::format("remote.url '{}' {}: write file:///path/of/a/directory", url, why)));
  };
  if (!url.starts_with(kScheme)) return refuse("has another scheme than file");
  const std::string_view text = url.substr(kScheme.size());
  if (text.empty() || text.front() != '/') return refuse("has no absolute path");
  const std::filesystem::path path(text);
  for (const auto& part : path) {
    if (part == "..") return refuse("has '..' in its path");
  }
  std::string plain = path.lexically_normal().string();
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  if (plain == "/") return refuse("names the root directory");
  return plain;
}

}  // namespace holdfast
