#include "coordinator/server/application.h"
#include "storage/base/program.h"

int main(int argc, char** argv) {
  holdfast::coord::CoordinatorConfig config;
  holdfast::ConfigSchema schema = holdfast::coord::BindConfig(config);
  std::optional<int> done = holdfast::ParseProgramArgs(
      argc, argv, "holdfast-coordinator: decides which versions are complete", schema,
      [&config] { return holdfast::coord::CheckConfig(config); });
  if (done) return *done;
  return holdfast::coord::Application(config).Run();
}
