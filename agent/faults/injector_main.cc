#include <cstdio>
#include <string>
#include <vector>

#include "agent/faults/injector.h"
#include "base/program.h"

// holdfast-fault: see injector.h. Started by the agent or the coordinator.

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 1 && arguments[0] == "--version") {
    std::printf("holdfast-fault %s\n", holdfast::BuildInfo().c_str());
    return 0;
  }
  if (!arguments.empty() && arguments[0].find('=') != std::string::npos) {
    return holdfast::agent::RunInjector(arguments);
  }
  std::fprintf(
      stderr,
      "usage: holdfast-fault KEY=VALUE...\n\n"
      "Carries out one failure of a drill and undoes it. Agents and the coordinator start\n"
      "it for `holdfast drill`; it has no configuration.\n");
  return arguments.size() == 1 && arguments[0] == "--help" ? 0 : 64;
}
