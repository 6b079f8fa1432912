#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/certificates/durable_file.h"
#include "base/status.h"

namespace holdfast::cli {

/// The folders of a machine, and the user of its servers.
struct Layout {
  std::string config_dir = "/etc/holdfast";
  std::string state_dir = "/var/lib/holdfast/tls";
  std::string user;  // empty: holdfast if root asks and this user exists, else the caller

  std::string ca() const { return state_dir + "/ca.crt"; }
  std::string ca_key() const { return state_dir + "/ca.key"; }
  /// The key of the authority that issues after the next switch.
  std::string next_ca_key() const { return state_dir + "/ca-next.key"; }
  /// The certificate and key of a server.
  std::string identity(std::string_view role) const;
  std::string config(std::string_view program) const;
  std::string cli_config() const { return config_dir + "/cli.toml"; }
  std::string operator_identity() const { return config_dir + "/operator.pem"; }
  std::string operator_ca() const { return config_dir + "/ca.crt"; }
};

/// The folder of an operator's own configuration: /etc/holdfast for root, else one in the home.
std::string OperatorConfigDir();

/// Returns the owner of the servers' files; nullopt: the caller. NotFound: no such user.
Result<std::optional<certificates::FileOwner>> OwnerOf(const Layout& layout);

/// Makes a folder and its parents. A new folder gets `mode` and `owner`.
Status MakeFolder(const std::string& path, mode_t mode,
                  std::optional<certificates::FileOwner> owner);

/// Writes a configuration. A file that is there becomes PATH.before-join.
Status WriteConfig(const std::string& path, const std::string& text);

/// Writes text as a TOML string.
std::string Quoted(std::string_view text);

/// Writes the files of an operator: the authority, certificate and key, and cli.toml.
Status WriteOperator(const Layout& layout, const std::string& endpoint, const std::string& ca_pem,
                     const std::string& identity_pem);

}  // namespace holdfast::cli
