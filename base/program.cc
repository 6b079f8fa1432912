#include "base/program.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#ifndef HOLDFAST_COMMIT
#define HOLDFAST_COMMIT "unknown"
#endif

namespace holdfast {

std::string BuildInfo() {
  std::string compiler =
#if defined(__clang__)
      "clang " __clang_version__;
#else
      "gcc " __VERSION__;
#endif
  std::string features;
#if defined(HOLDFAST_CRASH_POINTS)
  features += ", crash points";
#endif
  return std::string(HOLDFAST_VERSION) + " (commit " HOLDFAST_COMMIT ", " + compiler + features +
         ")";
}

std::optional<int> ParseProgramArgs(int argc, char** argv, const std::string& description,
                                    ConfigSchema& schema, const std::function<Status()>& check) {
  const std::string path = argc > 0 ? argv[0] : "";
  CLI::App app(description, path.substr(path.rfind('/') + 1));
  std::string config_path;
  std::vector<std::string> assignments;
  bool version = false;
  bool print_config = false;
  bool check_config = false;
  app.add_option("--config", config_path, "TOML file; --print-config shows every key");
  app.add_option("--set", assignments, "KEY=VALUE, over the file (repeatable)")
      ->allow_extra_args(false);
  app.add_flag("--version", version, "print version, commit, compiler and features");
  app.add_flag("--print-config", print_config, "print the effective configuration as TOML");
  app.add_flag("--check-config", check_config, "check the configuration and exit");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    int code = app.exit(error);
    return code == 0 ? 0 : 64;
  }
  if (version) {
    std::printf("%s %s\n", app.get_name().c_str(), BuildInfo().c_str());
    return 0;
  }
  Status status = config_path.empty() ? Status::Ok() : schema.LoadFile(config_path);
  for (const std::string& assignment : assignments) {
    if (status.ok()) status = schema.Set(assignment);
  }
  if (status.ok() && check_config) status = check();
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), status.message().c_str());
    return 1;
  }
  if (print_config) {
    std::fputs(schema.Render().c_str(), stdout);
    return 0;
  }
  if (check_config) {
    std::printf("configuration ok\n");
    return 0;
  }
  return std::nullopt;
}

}  // namespace holdfast
