#include "base/clock.h"
#include "base/cores.h"
#include "cli/cli.h"

int main(int argc, char** argv) {
  // Keys and tokens of operators.
  holdfast::KeepMemoryOutOfCores();
  return holdfast::cli::RunCli(argc, argv, holdfast::Clock::Real());
}
