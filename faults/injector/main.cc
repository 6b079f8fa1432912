#include <string_view>

#include "base/clock.h"
#include "base/program.h"
#include "faults/injector/application.h"
#include "faults/injector/carry_out.h"

int main(int argc, char** argv) {
  // The injector starts itself in this form for each fault; see carry_out.h.
  const std::string_view mode = argc == 3 ? argv[1] : "";
  if (mode == "--carry-out") return holdfast::faults::CarryOut(argv[2], holdfast::Clock::Real());
  if (mode == "--undo") return holdfast::faults::Undo(argv[2]);
  holdfast::faults::InjectorConfig config;
  holdfast::ConfigSchema schema("Configuration of holdfast-fault");
  config.Bind(schema);
  if (auto code = holdfast::ParseProgramArgs(
          argc, argv, "Injects the failures of `holdfast drill` into this machine, and undoes them",
          schema, [&config] { return config.Check(); })) {
    return *code;
  }
  return holdfast::faults::RunInjector(config, holdfast::Clock::Real());
}
