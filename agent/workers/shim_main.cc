#include <cstdio>
#include <string_view>

#include "agent/workers/shim.h"
#include "base/program.h"

// holdfast-shim: see shim.h. Started by the agent.

int main(int argc, char** argv) {
  const std::string_view argument = argc == 2 ? argv[1] : "";
  if (argument == "--version") {
    std::printf("holdfast-shim %s\n", holdfast::BuildInfo().c_str());
    return 0;
  }
  if (!argument.empty() && argument.front() == '/') return holdfast::agent::RunShim(argv[1]);
  const bool help = argument == "--help";
  std::fprintf(help ? stdout : stderr,
               "usage: holdfast-shim FOLDER\n\n"
               "Starts one worker of a job and records its output and its exit. The agent starts\n"
               "this program with the worker's folder; it has no configuration.\n");
  return help ? 0 : 64;
}
