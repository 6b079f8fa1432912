#include "cli/cli.h"

int main(int argc, char** argv) { return holdfast::cli::RunCli(argc, argv); }
