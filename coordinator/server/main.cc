#include <absl/synchronization/mutex.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/cores.h"
#include "base/program.h"
#include "coordinator/server/application.h"
#include "coordinator/server/store_reader.h"
#include "coordinator/store/backup.h"

namespace {
/// Removes "--rebuild" from the arguments. Returns whether they had it.
bool TakeRebuild(int& argc, char** argv) {
  char** const end = std::remove_if(argv + 1, argv + argc, [](const char* argument) {
    return std::string_view(argument) == "--rebuild";
  });
  const bool taken = end != argv + argc;
  argc = static_cast<int>(end - argv);
  return taken;
}

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

holdfast::Result<holdfast::coord::BackupCounts> Copy(
    const holdfast::coord::CoordinatorConfig& config, const std::string& to) {
  HOLDFAST_ASSIGN_OR_RETURN(const auto records, holdfast::coord::ReadStore(config));
  return holdfast::coord::WriteBackup(records, to);
}

int BackUp(const holdfast::coord::CoordinatorConfig& config, const std::string& to) {
  const auto counts = Copy(config, to);
  if (!counts) {
    fmt::print(stderr, "holdfast-coordinator: {}\n", counts.error().message());
    return 1;
  }
  fmt::print("copied {} records ({} bytes) of {} to {}\n", counts->records, counts->bytes,
             config.store == holdfast::coord::kEmbeddedStore ? config.data_dir : config.store, to);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  holdfast::KeepMemoryOutOfCores();
  // Debian builds Abseil with a search for deadlocks at every lock of gRPC, a twentieth of the CPU
  // time with thousands of agents.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const std::string backup_to = TakeBackupTo(argc, argv);
  const bool rebuild = TakeRebuild(argc, argv);
  holdfast::coord::CoordinatorConfig config;
  holdfast::ConfigSchema schema = holdfast::coord::BindConfig(config);
  std::optional<int> done = holdfast::ParseProgramArgs(
      argc, argv,
      "holdfast-coordinator: decides which versions are complete\n"
      "With --backup-to DIR it copies the metadata into DIR and exits; the coordinator "
      "may run meanwhile (docs/backup.md)\n"
      "With --rebuild it adopts all versions that the nodes have completely, after the loss of "
      "its store; without, `holdfast adopt` does",
      schema, [&config] { return holdfast::coord::CheckConfig(config); });
  if (done) return *done;
  if (!backup_to.empty()) return BackUp(config, backup_to);
  config.rebuild = rebuild;
  return holdfast::coord::Application(config, holdfast::Clock::Real()).Run();
}
