#include "charlm/options.h"

#include <CLI/CLI.hpp>

namespace charlm {
namespace {
constexpr int kUsage = 64;

void AddTraining(CLI::App& app, Options* o) {
  app.add_option("--rank", o->rank, "This process's number, from 0")->envname("RANK");
  app.add_option("--world", o->world, "The number of ranks")
      ->envname("WORLD_SIZE")
      ->check(CLI::Range(1, 1024));
  app.add_option("--rendezvous", o->rendezvous,
                 "Folder in which the ranks find each other's addresses (instead of --port-base)");
  app.add_option("--master-address", o->master_address,
                 "With --rendezvous: an IPv4 address or the name of rank 0's machine. Each rank "
                 "listens at the address from which its own machine reaches it")
      ->envname("MASTER_ADDR");
  app.add_option("--port-base", o->port_base, "Rank r listens on 127.0.0.1:<port-base + r>")
      ->envname("MASTER_PORT");
  app.add_option("--steps", o->steps, "Train up to this step");
  app.add_option("--params", o->parameters,
                 "Approximate number of weights; the state has 3 floats for each");
  app.add_option("--batch", o->batch, "Examples per rank and step")->check(CLI::Range(1, 65536));
  app.add_option("--seed", o->seed, "Seed of the weights and of the order of the data");
  app.add_option("--learning-rate", o->learning_rate, "Learning rate of Adam");
  app.add_option("--text", o->text, "The text file to train on");
}

void AddCheckpointing(CLI::App& app, Options* o) {
  app.add_option("--job", o->job, "The job's name")->envname("HOLDFAST_JOB");
  app.add_option("--run-id", o->run_id, "Names this start of the job, the same for all ranks")
      ->envname("HOLDFAST_RUN_ID");
  app.add_option("--socket", o->socket, "The agent's socket")->envname("HOLDFAST_SOCKET");
  app.add_flag("--no-checkpoint", o->no_checkpoint, "Train without Holdfast");
  app.add_flag("--allow-fresh", o->allow_fresh, "Start at step 0 if no agent answers");
  app.add_option("--save-every", o->save_every, "Save every N steps; 0: never");
  app.add_option("--slots", o->slots, "Versions kept in memory");
  app.add_option("--when-full", o->when_full, "What a save does without a free slot")
      ->check(CLI::IsMember({"skip", "wait"}));
  app.add_option("--connect-timeout", o->connect_timeout_ms, "Wait for the agent, milliseconds");
  app.add_option("--restore-timeout", o->restore_timeout_ms, "Wait for a restore, milliseconds");
  app.add_option("--wait-at-end", o->wait_at_end,
                 "Wait until the last version is committed at this tier")
      ->check(CLI::IsMember({"memory", "disk", "none"}));
}

void AddFaults(CLI::App& app, Options* o) {
  app.add_flag("--no-records", o->no_records, "Do not record steps and collectives");
  app.add_option("--hang-at-step", o->hang_at_step,
                 "For drills: this rank sleeps forever before the collectives of this step");
  app.add_option("--spin-at-step", o->spin_at_step, "For drills: the same, but spinning");
  app.add_option("--slow-ms", o->slow_ms,
                 "For drills: this rank is late for the collectives of each step, milliseconds");
  app.add_option("--slow-from-step", o->slow_from_step, "First step that --slow-ms delays");
}

void AddOutput(CLI::App& app, Options* o) {
  app.add_option("--final", o->final_file,
                 "File to which rank 0 writes the final weights, raw floats");
  app.add_option("--events", o->events, "Append events as JSON lines to this file; -: stdout");
  app.add_option("--log-every", o->log_every, "Rank 0 prints every N steps; 0: never");
  app.add_option("--step-sleep-ms", o->step_sleep_ms, "Sleep in every step, for drills");
  app.add_option("--pause-at-step", o->pause_at_step,
                 "Pause for an hour in the middle of this step, for drills");
}
}  // namespace

std::optional<int> ParseOptions(int argc, char** argv, Options* options) {
  CLI::App app{
      "Trains a character-level language model on several ranks, checkpointed by Holdfast.\n"
      "Exit codes: 0 done, 1 error, 3 lost another rank (start all again), 64 usage."};
  app.set_version_flag("--version", std::string("holdfast-charlm 0.1.0"));
  AddTraining(app, options);
  AddCheckpointing(app, options);
  AddOutput(app, options);
  AddFaults(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  if (options->rank >= options->world) {
    std::fprintf(stderr, "--rank %u: a world of %u has the ranks 0 to %u\n", options->rank,
                 options->world, options->world - 1);
    return kUsage;
  }
  return std::nullopt;
}

}  // namespace charlm
