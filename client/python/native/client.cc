#include "client/python/native/client.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "client/python/native/errors.h"
#include "client/python/native/tensors.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace holdfast::python {
namespace {
constexpr size_t kLogLinesMax = 1000;
constexpr uint64_t kDestructorMs = 5000;

holdfast_version ToC(const std::pair<uint64_t, uint64_t>& version) {
  return {version.first, version.second};
}

nb::dict ToPython(const holdfast_restored& restored) {
  nb::dict extras;
  for (uint32_t i = 0; i < restored.extra_count; ++i) {
    const holdfast_extra& extra = restored.extras[i];
    extras[extra.name] = nb::bytes(static_cast<const char*>(extra.data), extra.bytes);
  }
  nb::dict result;
  result["version"] = nb::make_tuple(restored.version.incarnation, restored.version.step);
  result["tier"] = restored.tier;
  result["bytes"] = restored.bytes;
  result["extras"] = extras;
  return result;
}
}  // namespace

Client::Client(const Settings& settings, nb::sequence tensors) : tensors_(std::move(tensors)) {
  holdfast_options options = HOLDFAST_OPTIONS_INIT;
  options.job = settings.job.c_str();
  options.rank = settings.rank;
  options.world = settings.world;
  options.run_id = OrNull(settings.run_id);
  options.socket_path = OrNull(settings.socket_path);
  options.device_backend = OrNull(settings.device_backend);
  options.slots = settings.slots;
  options.when_full = settings.when_full;
  options.wait_ms = settings.wait_ms;
  options.connect_timeout_ms = settings.connect_timeout_ms;
  options.agent_timeout_ms = settings.agent_timeout_ms;
  options.start_offline = settings.start_offline;
  options.extra_bytes_max = settings.extra_bytes_max;
  options.extra_count_max = settings.extra_count_max;
  options.copy_threads = settings.copy_threads;
  options.image_format = settings.image_format;
  options.log = &Client::Log;
  options.log_context = this;
  TensorList list(nb::borrow<nb::sequence>(tensors_));
  holdfast_error error{};
  holdfast_code code;
  {
    nb::gil_scoped_release unlocked;
    code = holdfast_open(&options, list.data(), list.size(), &client_, &error);
  }
  Check(code, error);
}

Client::~Client() {
  if (client_ == nullptr) return;
  nb::gil_scoped_release unlocked;
  holdfast_close(client_, kDestructorMs, nullptr);
}

holdfast_client* Client::get() const {
  if (client_ == nullptr) Raise(HOLDFAST_FAILED_PRECONDITION, "the client is closed");
  return client_;
}

void Client::Save(uint64_t step, const Extras& extras, uintptr_t stream, uint32_t wait_ms) {
  std::vector<holdfast_extra> raw;
  raw.reserve(extras.size());
  for (const auto& [name, bytes] : extras)
    raw.push_back({name.c_str(), bytes.data(), bytes.size()});
  holdfast_save_options options{
      sizeof options, raw.data(), raw.size(), reinterpret_cast<void*>(stream), wait_ms, 0};
  holdfast_error error{};
  holdfast_client* client = get();
  holdfast_code code;
  {
    nb::gil_scoped_release unlocked;
    code = holdfast_save(client, step, &options, &error);
  }
  Check(code, error);
}

void Client::Guard(uintptr_t stream) {
  holdfast_error error{};
  holdfast_client* client = get();
  holdfast_code code;
  {
    nb::gil_scoped_release unlocked;
    code = holdfast_guard(client, reinterpret_cast<void*>(stream), &error);
  }
  Check(code, error);
}

void Client::Wait(uint64_t step, uint32_t tier, uint64_t timeout_ms) {
  holdfast_error error{};
  holdfast_client* client = get();
  holdfast_code code;
  {
    nb::gil_scoped_release unlocked;
    const Interruptible interruptible;
    code = holdfast_wait(client, step, tier, timeout_ms, &error);
  }
  Check(code, error);
}

std::optional<std::pair<uint64_t, uint64_t>> Client::Latest(uint32_t tier) {
  holdfast_version version{};
  holdfast_error error{};
  holdfast_code code = holdfast_latest(get(), tier, &version, &error);
  if (code == HOLDFAST_NOT_FOUND) return std::nullopt;
  Check(code, error);
  return std::pair(version.incarnation, version.step);
}

void Client::Connection() {
  holdfast_error error{};
  Check(holdfast_connection(get(), &error), error);
}

nb::dict Client::Restore(std::optional<std::pair<uint64_t, uint64_t>> wanted, uint64_t timeout_ms) {
  holdfast_version version = ToC(wanted.value_or(std::pair<uint64_t, uint64_t>()));
  holdfast_restored* restored = nullptr;
  holdfast_error error{};
  holdfast_client* client = get();
  holdfast_code code;
  {
    nb::gil_scoped_release unlocked;
    const Interruptible interruptible;
    code = holdfast_restore(client, wanted ? &version : nullptr, timeout_ms, &restored, &error);
  }
  Check(code, error);
  nb::dict result = ToPython(*restored);
  holdfast_restored_free(restored);
  return result;
}

std::vector<std::string> Client::Differences() {
  std::vector<std::string> result;
  for (size_t i = 0; i < holdfast_difference_count(get()); ++i) {
    result.emplace_back(holdfast_difference(client_, i));
  }
  return result;
}

void Client::BeginPhase(uint32_t phase) { holdfast_phase_begin(client_, phase); }
void Client::EndPhase(uint32_t phase) { holdfast_phase_end(client_, phase); }

nb::dict Client::Stats() {
  holdfast_stats stats{};
  stats.struct_size = sizeof stats;
  holdfast_get_stats(get(), &stats);
  nb::dict result;
  result["saves"] = stats.saves;
  result["skipped"] = stats.skipped;
  result["copied"] = stats.copied;
  result["sealed"] = stats.sealed;
  result["failed"] = stats.failed;
  result["committed_memory"] = stats.committed_memory;
  result["committed_disk"] = stats.committed_disk;
  result["superseded"] = stats.superseded;
  result["reconnects"] = stats.reconnects;
  result["bytes_copied"] = stats.bytes_copied;
  result["copy_ns"] = stats.copy_ns;
  result["guard_ns"] = stats.guard_ns;
  result["incarnation"] = stats.incarnation;
  result["image_bytes_max"] = stats.image_bytes_max;
  result["connected"] = stats.connected != 0;
  result["pending"] = stats.pending;
  result["records_dropped"] = stats.records_dropped;
  result["gather_below"] = stats.gather_below;
  return result;
}

void Client::Close(uint64_t timeout_ms) {
  if (client_ == nullptr) return;
  holdfast_client* client = std::exchange(client_, nullptr);
  holdfast_error error{};
  holdfast_code code;
  {
    nb::gil_scoped_release unlocked;
    code = holdfast_close(client, timeout_ms, &error);
  }
  // The library reads no tensor any more.
  tensors_ = nb::none();
  Check(code, error);
}

void Client::Log(void* context, int level, const char* message) {
  auto* client = static_cast<Client*>(context);
  std::lock_guard lock(client->log_mutex_);
  if (client->log_.size() < kLogLinesMax) client->log_.emplace_back(level, message);
}

std::vector<std::pair<int, std::string>> Client::TakeLog() {
  std::lock_guard lock(log_mutex_);
  std::vector<std::pair<int, std::string>> taken(log_.begin(), log_.end());
  log_.clear();
  return taken;
}

void BindClient(nb::module_& module) {
  nb::class_<Client>(module, "Client")
      .def(
          "__init__",
          [](Client* self, std::string job, uint32_t rank, uint32_t world,
             std::optional<std::string> run_id, std::optional<std::string> socket_path,
             std::optional<std::string> device_backend, nb::sequence tensors, uint32_t slots,
             uint32_t when_full, uint32_t wait_ms, uint32_t connect_timeout_ms,
             uint32_t agent_timeout_ms, bool start_offline, uint64_t extra_bytes_max,
             uint32_t extra_count_max, uint32_t copy_threads, uint32_t image_format) {
            new (self)
                Client({std::move(job), rank, world, std::move(run_id), std::move(socket_path),
                        std::move(device_backend), slots, when_full, wait_ms, connect_timeout_ms,
                        agent_timeout_ms, start_offline ? 1U : 0U, extra_bytes_max, extra_count_max,
                        copy_threads, image_format},
                       std::move(tensors));
          },
          nb::kw_only(), "job"_a, "rank"_a, "world"_a, "run_id"_a.none(), "socket_path"_a.none(),
          "device_backend"_a.none(), "tensors"_a, "slots"_a, "when_full"_a, "wait_ms"_a,
          "connect_timeout_ms"_a, "agent_timeout_ms"_a, "start_offline"_a, "extra_bytes_max"_a,
          "extra_count_max"_a, "copy_threads"_a, "image_format"_a)
      .def("save", &Client::Save, "step"_a, "extras"_a, "stream"_a, "wait_ms"_a)
      .def("guard", &Client::Guard, "stream"_a)
      .def("wait", &Client::Wait, "step"_a, "tier"_a, "timeout_ms"_a)
      .def("latest", &Client::Latest, "tier"_a)
      .def("connection", &Client::Connection)
      .def("restore", &Client::Restore, "wanted"_a.none(), "timeout_ms"_a)
      .def("differences", &Client::Differences)
      .def("begin_phase", &Client::BeginPhase, "phase"_a)
      .def("end_phase", &Client::EndPhase, "phase"_a)
      .def("stats", &Client::Stats)
      .def("close", &Client::Close, "timeout_ms"_a)
      .def_prop_ro("closed", &Client::closed)
      .def("take_log", &Client::TakeLog);
}

}  // namespace holdfast::python
