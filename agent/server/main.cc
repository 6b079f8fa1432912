#include "agent/server/application.h"
#include "storage/base/program.h"

int main(int argc, char** argv) {
  holdfast::agent::AgentConfig config;
  holdfast::ConfigSchema schema("Configuration of holdfast-agent");
  config.Bind(schema);
  if (auto code = holdfast::ParseProgramArgs(
          argc, argv, "Keeps the checkpoints of one node's trainers in memory and on disk",
          schema)) {
    return *code;
  }
  return holdfast::agent::RunAgent(config);
}
