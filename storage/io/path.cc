#include "storage/io/path.h"

#include <fmt/format.h>

namespace holdfast {
namespace {
constexpr size_t kComponentBytesMax = 255;
constexpr size_t kPathBytesMax = 4095;
}  // namespace

Status ValidatePath(std::string_view path, bool directory) {
  if (directory && path == ".") return Status::Ok();
  auto refuse = [&](std::string_view why) {
    return InvalidArgumentError(fmt::format("path \"{}\" {}", path, why));
  };
  if (path.empty()) return InvalidArgumentError("the path is empty");
  if (path.size() > kPathBytesMax) {
    return InvalidArgumentError(
        fmt::format("the path has {} bytes; at most {} are allowed", path.size(), kPathBytesMax));
  }
  if (path.find('\0') != std::string_view::npos) {
    return InvalidArgumentError("the path contains a NUL byte");
  }
  if (path.front() == '/') return refuse("is absolute; give it relative to the directory");
  size_t start = 0;
  while (start <= path.size()) {
    size_t end = path.find('/', start);
    if (end == std::string_view::npos) end = path.size();
    std::string_view component = path.substr(start, end - start);
    if (component.empty()) return refuse("has an empty component");
    if (component == "." || component == "..") return refuse("has a \".\" or \"..\" component");
    if (component.size() > kComponentBytesMax)
      return refuse("has a component longer than 255 bytes");
    start = end + 1;
  }
  return Status::Ok();
}

std::pair<std::string, std::string> SplitPath(const std::string& path) {
  size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {path.substr(0, slash), path.substr(slash + 1)};
}

}  // namespace holdfast
