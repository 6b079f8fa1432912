#include "client/core/options.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>

#include "agent/api/segment_layout.h"
#include "base/ids.h"
#include "base/job_name.h"
#include "base/random.h"

namespace holdfast::client {
namespace {
constexpr char kDefaultSocket[] = "/run/holdfast/agent.sock";
constexpr uint32_t kSlotsMin = 2;
constexpr uint32_t kCopyThreadsMax = 64;
constexpr size_t kBackendNameMax = 16;

/// Returns `value`, else the environment variable, else an empty text.
std::string TextOr(const char* value, const char* variable) {
  if (value != nullptr && *value != '\0') return value;
  const char* from_environment = std::getenv(variable);
  return from_environment == nullptr ? "" : from_environment;
}

void Check(const Status& status, std::vector<std::string>* defects) {
  if (!status.ok()) defects->push_back(status.message());
}

void ResolveRunId(const holdfast_options& raw, ClientOptions* options,
                  std::vector<std::string>* defects) {
  options->run_id = TextOr(raw.run_id, "HOLDFAST_RUN_ID");
  if (options->run_id.empty() && raw.world == 1) options->run_id = RandomHex(16);
  if (options->run_id.empty()) {
    defects->push_back(
        "run_id is missing: with more than one rank, the launcher must generate a new one at each "
        "start of the job and pass the same one to all ranks, as options.run_id or in "
        "HOLDFAST_RUN_ID");
    return;
  }
  bool printable = std::all_of(options->run_id.begin(), options->run_id.end(),
                               [](char c) { return c > 0x20 && c < 0x7f; });
  if (!printable || options->run_id.size() > 128) {
    defects->push_back("run_id must be 1 to 128 printable ASCII characters without spaces");
  }
}

void ResolveDeviceBackend(const holdfast_options& raw, ClientOptions* options,
                          std::vector<std::string>* defects) {
  const std::string name = TextOr(raw.device_backend, "HOLDFAST_DEVICE_BACKEND");
  if (name.empty()) return;
  // The name becomes a part of a path.
  const bool valid = name.size() <= kBackendNameMax && std::ranges::all_of(name, [](char c) {
                       return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
                     });
  if (!valid) {
    defects->push_back("device_backend must be 1 to " + std::to_string(kBackendNameMax) +
                       " lowercase letters and digits, such as cuda");
  }
  options->device_backend = name;
}

void ResolveImageFormat(const holdfast_options& raw, ClientOptions* options,
                        std::vector<std::string>* defects) {
  const std::string given = raw.image_format == 0 ? TextOr(nullptr, "HOLDFAST_IMAGE_FORMAT")
                                                  : std::to_string(raw.image_format);
  if (given.empty()) return;
  for (uint32_t format = kImageFormat; format <= kImageFormatMax; ++format) {
    if (given != std::to_string(format)) continue;
    options->image_format = format;
    return;
  }
  defects->push_back("image_format (or HOLDFAST_IMAGE_FORMAT) is '" + given.substr(0, 20) +
                     "': it must be 1 or 2");
}

template <typename T>
T OrDefault(T value, T fallback) {
  return value == 0 ? fallback : value;
}
}  // namespace

Result<ClientOptions> ResolveOptions(const holdfast_options& given) {
  if (given.struct_size < offsetof(holdfast_options, slots)) {
    return Fail(
        InvalidArgumentError("options.struct_size is " + std::to_string(given.struct_size) +
                             ": begin with holdfast_options options = HOLDFAST_OPTIONS_INIT"));
  }
  holdfast_options raw{};
  std::memcpy(&raw, &given, std::min(given.struct_size, sizeof raw));

  // Collects all defects, so that the caller can correct them at once.
  ClientOptions options;
  std::vector<std::string> defects;
  options.job = raw.job == nullptr ? "" : raw.job;
  Check(ValidateJobName(options.job), &defects);
  ResolveRunId(raw, &options, &defects);
  ResolveDeviceBackend(raw, &options, &defects);
  ResolveImageFormat(raw, &options, &defects);
  options.socket_path = TextOr(raw.socket_path, "HOLDFAST_SOCKET");
  if (options.socket_path.empty()) options.socket_path = kDefaultSocket;
  options.rank = raw.rank;
  options.world = raw.world;
  if (raw.world == 0 || raw.world > kWorldMax) {
    defects.push_back("world is " + std::to_string(raw.world) + ": it must be 1 to " +
                      std::to_string(kWorldMax));
  } else if (raw.rank >= raw.world) {
    defects.push_back("rank is " + std::to_string(raw.rank) + " in a world of " +
                      std::to_string(raw.world) + ": ranks count from 0");
  }
  options.slots = OrDefault(raw.slots, options.slots);
  if (options.slots < kSlotsMin || options.slots > agent::kSlotsMax) {
    defects.push_back("slots is " + std::to_string(options.slots) + ": it must be " +
                      std::to_string(kSlotsMin) + " to " + std::to_string(agent::kSlotsMax) +
                      ", since the newest complete version keeps one while the next is written");
  }
  if (raw.when_full > HOLDFAST_WAIT) {
    defects.push_back("when_full is " + std::to_string(raw.when_full) +
                      ": use HOLDFAST_SKIP or HOLDFAST_WAIT");
  }
  options.wait_for_slot = raw.when_full == HOLDFAST_WAIT;
  options.wait_ms = OrDefault(raw.wait_ms, options.wait_ms);
  options.connect_timeout_ms = OrDefault(raw.connect_timeout_ms, options.connect_timeout_ms);
  options.agent_timeout_ms = OrDefault(raw.agent_timeout_ms, options.agent_timeout_ms);
  options.start_offline = raw.start_offline != 0;
  options.extra_bytes_max = OrDefault(raw.extra_bytes_max, options.extra_bytes_max);
  options.extra_count_max = OrDefault(raw.extra_count_max, options.extra_count_max);
  options.copy_threads =
      std::min(OrDefault(raw.copy_threads, options.copy_threads), kCopyThreadsMax);
  options.log = raw.log;
  options.log_context = raw.log_context;
  if (!defects.empty()) return Fail(InvalidArgumentError(JoinDefects(defects)));
  return options;
}

namespace {
/// Returns the number of elements of a shape, or nothing when the product overflows.
std::optional<uint64_t> Elements(std::span<const uint64_t> shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  uint64_t count = 1;
  for (uint64_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  return count;
}

std::vector<uint64_t> Numbers(const uint64_t* first, uint32_t count) {
  return first == nullptr ? std::vector<uint64_t>() : std::vector<uint64_t>(first, first + count);
}

/// Converts one tensor. Adds its defects to `defects`.
TensorSpec SpecOf(const holdfast_tensor& raw, size_t index, std::vector<std::string>* defects) {
  TensorSpec spec;
  if (raw.name == nullptr) {
    defects->push_back("tensor " + std::to_string(index) + " has no name");
    return spec;
  }
  spec.name.assign(raw.name, strnlen(raw.name, kTensorNameMax + 1));
  auto refuse = [&](const std::string& why) {
    defects->push_back("tensor '" + spec.name.substr(0, 200) + "': " + why);
  };
  if (auto dtype = DTypeFromNumber(raw.dtype)) {
    spec.dtype = *dtype;
  } else {
    refuse(dtype.error().message());
  }
  if (raw.dimensions > kDimensionsMax) {
    refuse(std::to_string(raw.dimensions) + " dimensions; the maximum is " +
           std::to_string(kDimensionsMax));
    return spec;
  }
  if (raw.dimensions > 0 && raw.shape == nullptr) {
    refuse("shape is NULL but dimensions is " + std::to_string(raw.dimensions));
    return spec;
  }
  spec.shape = Numbers(raw.shape, raw.dimensions);
  spec.global_shape =
      raw.global_shape == nullptr ? spec.shape : Numbers(raw.global_shape, raw.dimensions);
  spec.offset = raw.offset == nullptr ? std::vector<uint64_t>(raw.dimensions, 0)
                                      : Numbers(raw.offset, raw.dimensions);
  if (raw.data == nullptr && Elements(spec.shape) != 0) {
    refuse("data is NULL, which is valid only for a tensor without elements");
  }
  if (raw.device > HOLDFAST_DEVICE) {
    refuse("device is " + std::to_string(raw.device) + ": use HOLDFAST_HOST or HOLDFAST_DEVICE");
  }
  if (raw.device == HOLDFAST_DEVICE && raw.device_index < 0) {
    refuse("device_index is " + std::to_string(raw.device_index));
  }
  return spec;
}
}  // namespace

Result<StateDescription> DescribeState(std::span<const holdfast_tensor> tensors) {
  if (tensors.size() > kTensorsMax) {
    return Fail(InvalidArgumentError(std::to_string(tensors.size()) +
                                     " tensors; one rank can save at most " +
                                     std::to_string(kTensorsMax)));
  }
  StateDescription state;
  std::vector<std::string> defects;
  state.specs.reserve(tensors.size());
  state.memory.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const holdfast_tensor& raw = tensors[i];
    state.specs.push_back(SpecOf(raw, i, &defects));
    state.memory.push_back({.data = static_cast<std::byte*>(raw.data),
                            .device = raw.device == HOLDFAST_DEVICE,
                            .device_index = raw.device_index});
  }
  if (!defects.empty()) return Fail(InvalidArgumentError(JoinDefects(defects)));
  return state;
}

std::string JoinDefects(std::span<const std::string> defects, size_t most) {
  std::string text;
  for (size_t i = 0; i < std::min(most, defects.size()); ++i) {
    if (i > 0) text += text.ends_with('.') ? " " : "; ";
    text += defects[i];
  }
  if (defects.size() > most) {
    text += std::string(text.ends_with('.') ? " And " : "; and ") +
            std::to_string(defects.size() - most) + " more";
  }
  return text;
}

}  // namespace holdfast::client
