#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "base/program.h"
#include "coordinator/server/application.h"
#include "coordinator/store/backup.h"

namespace {
/// Removes "--backup-to DIR" from the arguments and returns DIR; empty if the option is absent.
std::string TakeBackupTo(int& argc, char** argv) {
  constexpr std::string_view kOption = "--backup-to";
  std::string to;
  int kept = 0;
  for (int i = 0; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == kOption && i + 1 < argc) {
      to = argv[++i];
    } else if (argument.starts_with(kOption) && argument.substr(kOption.size()).starts_with("=")) {
      to = argument.substr(kOption.size() + 1);
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return to;
}

int BackUp(const std::string& data_dir, const std::string& to) {
  const auto counts = holdfast::coord::BackUpStore(data_dir + "/metadata", to + "/metadata");
  if (!counts) {
    fmt::print(stderr, "holdfast-coordinator: {}\n", counts.error().message());
    return 1;
  }
  fmt::print("copied {} records ({} bytes) of {} to {}\n", counts->records, counts->bytes, data_dir,
             to);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  const std::string backup_to = TakeBackupTo(argc, argv);
  holdfast::coord::CoordinatorConfig config;
  holdfast::ConfigSchema schema = holdfast::coord::BindConfig(config);
  std::optional<int> done = holdfast::ParseProgramArgs(
      argc, argv,
      "holdfast-coordinator: decides which versions are complete\n"
      "With --backup-to DIR it copies the store of data_dir into DIR and exits; the coordinator "
      "may run meanwhile (docs/backup.md)",
      schema, [&config] { return holdfast::coord::CheckConfig(config); });
  if (done) return *done;
  if (!backup_to.empty()) return BackUp(config.data_dir, backup_to);
  return holdfast::coord::Application(config).Run();
}
