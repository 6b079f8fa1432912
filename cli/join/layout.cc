#include "cli/join/layout.h"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "cli/core/options.h"

namespace holdfast::cli {
namespace {
constexpr const char* kServerUser = "holdfast";
constexpr mode_t kPublicFile = 0644;
constexpr mode_t kSecretFile = 0600;
constexpr mode_t kPublicFolder = 0755;

std::optional<certificates::FileOwner> FindUser(const std::string& name) {
  std::array<char, 16'384> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  ::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) return std::nullopt;
  return certificates::FileOwner{found->pw_uid, found->pw_gid};
}
}  // namespace

std::string Layout::identity(std::string_view role) const {
  return fmt::format("{}/{}.pem", state_dir, role);
}

std::string Layout::config(std::string_view program) const {
  return fmt::format("{}/{}.toml", config_dir, program);
}

std::string OperatorConfigDir() {
  if (::geteuid() == 0) return Layout().config_dir;
  return ReadEnvironment().home + "/.config/holdfast";
}

Result<std::optional<certificates::FileOwner>> OwnerOf(const Layout& layout) {
  if (layout.user.empty()) {
    if (::geteuid() != 0) return std::nullopt;
    return FindUser(kServerUser);
  }
  const auto owner = FindUser(layout.user);
  if (!owner) return Fail(NotFoundError(fmt::format("--user: no user '{}'", layout.user)));
  return owner;
}

Status MakeFolder(const std::string& path, mode_t mode,
                  std::optional<certificates::FileOwner> owner) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return Status::Ok();
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) {
    std::filesystem::create_directories(parent, error);
    if (error) return ErrnoStatus(error.value(), "mkdir " + parent.string());
  }
  if (::mkdir(path.c_str(), mode) != 0) return ErrnoStatus(errno, "mkdir " + path);
  if (owner && ::chown(path.c_str(), owner->uid, owner->gid) != 0) {
    return ErrnoStatus(errno, "chown " + path);
  }
  return ::chmod(path.c_str(), mode) == 0 ? Status::Ok() : ErrnoStatus(errno, "chmod " + path);
}

Status WriteConfig(const std::string& path, const std::string& text) {
  const std::string before = path + ".before-join";
  if (std::rename(path.c_str(), before.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, "rename " + path);
  }
  return certificates::ReplaceFile(path, text, kPublicFile);
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

Status WriteOperator(const Layout& layout, const std::string& endpoint, const std::string& ca_pem,
                     const std::string& identity_pem) {
  HOLDFAST_RETURN_IF_ERROR(MakeFolder(layout.config_dir, kPublicFolder, std::nullopt));
  HOLDFAST_RETURN_IF_ERROR(
      certificates::ReplaceFile(layout.operator_identity(), identity_pem, kSecretFile));
  HOLDFAST_RETURN_IF_ERROR(certificates::ReplaceFile(layout.operator_ca(), ca_pem, kPublicFile));
  return certificates::ReplaceFile(
      layout.cli_config(),
      fmt::format(
          "# Options of the command `holdfast`.\nendpoint = {}\ntls-ca = {}\ntls-cert = {}\n"
          "tls-key = {}\n",
          Quoted(endpoint), Quoted(layout.operator_ca()), Quoted(layout.operator_identity()),
          Quoted(layout.operator_identity())),
      kPublicFile);
}

}  // namespace holdfast::cli
