#pragma once

#include <string>

#include "base/config.h"
#include "base/http/http_options.h"

namespace holdfast::ui {

/// Where the coordinator serves its page: the section [ui] of the configuration.
struct UiOptions {
  std::string listen{};
  std::string token_file{};

  /// Adds every field to `schema`. The options must outlive the schema.
  void Bind(ConfigSchema& schema);
  bool enabled() const { return !listen.empty(); }
};

HttpOptions HttpOf(const UiOptions& options);
/// Checks the options and the files that they name.
Status CheckUi(const UiOptions& options, const HttpCertificate& tls);

}  // namespace holdfast::ui
