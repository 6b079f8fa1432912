#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace charlm {

struct Options {
  uint32_t rank = 0;
  uint32_t world = 1;
  std::string rendezvous;
  std::string master_address = "127.0.0.1";
  int port_base = 29700;
  uint64_t steps = 100;
  uint64_t parameters = 20'000;
  uint64_t batch = 32;
  uint64_t seed = 1;
  float learning_rate = 2e-3F;
  std::string text = "/usr/share/common-licenses/GPL-3";

  std::string job = "charlm";
  std::string run_id;
  std::string socket;
  bool no_checkpoint = false;
  bool allow_fresh = false;
  uint64_t save_every = 1;
  uint32_t slots = 3;
  std::string when_full = "skip";
  uint64_t connect_timeout_ms = 30'000;
  uint64_t restore_timeout_ms = 120'000;
  std::string wait_at_end = "memory";

  std::string final_file;
  std::string events;
  uint64_t step_sleep_ms = 0;
  uint64_t pause_at_step = 0;
  uint64_t log_every = 1;

  // Records of collectives, and injected faults of this rank. Step 0 means never.
  bool no_records = false;
  uint64_t hang_at_step = 0;
  uint64_t spin_at_step = 0;
  uint64_t slow_ms = 0;
  uint64_t slow_from_step = 1;
};

/// Parses the flags. Returns the exit code if the program should end (help, usage error).
std::optional<int> ParseOptions(int argc, char** argv, Options* options);

}  // namespace charlm
