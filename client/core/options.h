#pragma once

#include <holdfast/holdfast.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "storage/format/image.h"

// The arguments of the C interface, checked, copied and with defaults filled in. The only place
// that reads the environment.

namespace holdfast::client {

struct ClientOptions {
  std::string socket_path;
  std::string job;
  std::string run_id;
  uint32_t rank = 0;
  uint32_t world = 0;
  uint32_t slots = 3;
  bool wait_for_slot = false;
  uint32_t wait_ms = 1000;
  uint32_t connect_timeout_ms = 10'000;
  uint32_t agent_timeout_ms = 500;
  bool start_offline = false;
  uint64_t extra_bytes_max = 1ULL << 20;
  uint32_t extra_count_max = 16;
  uint32_t copy_threads = 2;
  std::string device_backend = "cuda";
  uint32_t image_format = kImageFormat;
  holdfast_log_fn log = nullptr;
  void* log_context = nullptr;
};

/// Checks `raw` and fills in defaults. InvalidArgument names every defect, and what to pass
/// instead.
Result<ClientOptions> ResolveOptions(const holdfast_options& raw);

/// A tensor's memory, borrowed from the caller for the client's life.
struct TensorMemory {
  std::byte* data = nullptr;
  bool device = false;
  int32_t device_index = 0;
};

/// The state to save: specs and memory in the caller's order.
struct StateDescription {
  std::vector<TensorSpec> specs;
  std::vector<TensorMemory> memory;
};

/// Converts `tensors`, and checks what the layout does not (null pointers, device numbers).
/// InvalidArgument names every invalid tensor.
Result<StateDescription> DescribeState(std::span<const holdfast_tensor> tensors);

/// Returns "a; b; c": at most `most` defects, then the number of the others.
std::string JoinDefects(std::span<const std::string> defects, size_t most = 20);

}  // namespace holdfast::client
