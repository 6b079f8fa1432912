#include "agent/server/application.h"
#include "base/clock.h"
#include "base/program.h"

int main(int argc, char** argv) {
  holdfast::agent::AgentConfig config;
  holdfast::ConfigSchema schema("Configuration of holdfast-agent");
  config.Bind(schema);
  if (auto code = holdfast::ParseProgramArgs(
          argc, argv, "Keeps the checkpoints of one node's trainers in memory and on disk", schema,
          [&config] { return config.CheckStart(); })) {
    return *code;
  }
  return holdfast::agent::RunAgent(config, holdfast::Clock::Real());
}
