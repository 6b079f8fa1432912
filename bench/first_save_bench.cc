// From the start of a job to its first save, compared with a parallel fallocate of the same bytes:
// the job cannot save before its slots have memory.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include "agent/arena/headroom.h"
#include "base/fd.h"
#include "bench/bench.h"
#include "bench/live_client.h"
#include "testing/cluster/cluster.h"

namespace holdfast::bench {
namespace {
constexpr uint32_t kSlots = 3;
constexpr std::chrono::seconds kTimeout(120);

/// Runs `one` for each number below `count` on its own thread. Returns the last error.
Status InParallel(uint32_t count, const std::function<Status(uint32_t)>& one) {
  std::vector<std::future<Status>> running;
  for (uint32_t i = 0; i < count; ++i) running.push_back(std::async(std::launch::async, one, i));
  Status status;
  for (std::future<Status>& each : running) {
    if (Status ended = each.get(); !ended.ok()) status = std::move(ended);
  }
  return status;
}

/// Touches nearly all free memory and frees it at once. A virtual machine may have lent its free
/// memory back to its host; without this, the first of two measurements pays for fetching it. Stays
/// below the limits of this process's cgroups.
Status TouchFreeMemory() {
  const uint32_t threads = std::max(1U, std::thread::hardware_concurrency());
  struct sysinfo memory_of_machine = {};
  if (::sysinfo(&memory_of_machine) != 0) return ErrnoStatus(errno, "sysinfo");
  const uint64_t free = std::min<uint64_t>(memory_of_machine.freeram * memory_of_machine.mem_unit,
                                           agent::AvailableMemory().bytes);
  const uint64_t share = free / 10 * 9 / threads;
  return InParallel(threads, [&](uint32_t) -> Status {
    void* const memory =
        ::mmap(nullptr, share, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return ErrnoStatus(errno, "mmap");
    ::madvise(memory, share, MADV_HUGEPAGE);
    const bool done = ::madvise(memory, share, MADV_POPULATE_WRITE) == 0;
    const int error = errno;
    ::munmap(memory, share);
    return done ? Status::Ok() : ErrnoStatus(error, "touch memory");
  });
}

/// The times from the start of the ranks, in seconds.
struct FirstSave {
  double saved = 0;      // until all ranks have connected and called Save
  double committed = 0;  // until that version is committed in memory
};

/// All ranks save the same memory, so that the machine's own memory suffices.
Result<FirstSave> SaveFirst(uint32_t ranks, std::vector<float>& tensor) {
  const uint64_t bytes = tensor.size() * sizeof(float);
  local::ClusterOptions options;
  HOLDFAST_ASSIGN_OR_RETURN(options.root, local::MakeTempDir("hf-bench"));
  options.nodes = 1;
  options.disk_every = 1'000'000'000;
  options.arena_bytes = (bytes + (8ULL << 20)) * kSlots * ranks + (64ULL << 20);
  FirstSave took;
  Status status;
  {
    local::Cluster cluster(options);
    status = cluster.Start();
    if (status.ok()) status = TouchFreeMemory();
    std::vector<std::optional<v1::Client>> clients(ranks);
    const std::vector<v1::Tensor> state = {v1::Whole("w", tensor, {tensor.size()})};
    const auto begin = std::chrono::steady_clock::now();
    const auto since = [begin] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    const auto connect_and_save = [&](uint32_t rank) -> Status {
      v1::Options connection;
      connection.job = "bench";
      connection.run_id = "first";
      connection.rank = rank;
      connection.world = ranks;
      connection.slots = kSlots;
      connection.socket_path = cluster.AgentSocket(0);
      connection.connect_timeout = kTimeout;
      auto client = v1::Client::Open(connection, state);
      if (!client.ok()) return FromClient(client.status());
      clients[rank].emplace(std::move(*client));
      return FromClient(clients[rank]->Save(1));
    };
    if (status.ok()) status = InParallel(ranks, connect_and_save);
    took.saved = since();
    if (status.ok()) status = FromClient(clients[0]->Wait(1, v1::Tier::kMemory, kTimeout));
    took.committed = since();
  }
  std::error_code ignored;
  std::filesystem::remove_all(options.root, ignored);
  if (!status.ok()) return Fail(status);
  return took;
}

/// Returns the seconds that one thread for each processor takes to reserve `bytes` together.
Result<double> SecondsToReserve(uint64_t bytes) {
  const uint32_t threads = std::max(1U, std::thread::hardware_concurrency());
  const auto share = static_cast<off_t>(bytes / threads);
  std::vector<UniqueFd> files(threads);
  HOLDFAST_RETURN_IF_ERROR(TouchFreeMemory());
  Status status;
  const double seconds = SecondsOf([&] {
    status = InParallel(threads, [&](uint32_t i) -> Status {
      files[i] = UniqueFd(::memfd_create("holdfast-bench", MFD_CLOEXEC));
      const bool done = files[i].valid() && ::fallocate(files[i].get(), 0, 0, share) == 0;
      return done ? Status::Ok() : ErrnoStatus(errno, "fallocate");
    });
  });
  if (!status.ok()) return Fail(status);
  return seconds;
}
}  // namespace

Result<std::vector<BenchResult>> RunFirstSave(const BenchOptions& options) {
  const uint32_t ranks = options.quick ? 2 : 8;
  const uint64_t bytes = options.quick ? 64ULL << 20 : 512ULL << 20;
  std::vector<float> tensor(bytes / sizeof(float));
  FillRandom(tensor.data(), bytes, 1);
  HOLDFAST_ASSIGN_OR_RETURN(const FirstSave ours, SaveFirst(ranks, tensor));
  HOLDFAST_ASSIGN_OR_RETURN(const double reference, SecondsToReserve(bytes * kSlots * ranks));
  return std::vector<BenchResult>{
      {.name = "first_save",
       .ratio = ours.saved / reference,
       .ours = ours.saved,
       .reference = reference,
       .unit = "s",
       .goal = "<=1.2",
       .note = fmt::format("{} ranks × {} slots × {} MiB, start of the ranks until all have called "
                           "Save ÷ fallocate of the same bytes by one thread for each processor; "
                           "the version is committed after {:.2f} s",
                           ranks, kSlots, bytes >> 20, ours.committed)}};
}

}  // namespace holdfast::bench
