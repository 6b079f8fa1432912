// Writes sealed slots durably (fsync, rename, directory fsync) and reads them, compared with the
// best fio setting.

#include <fmt/format.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "bench/bench.h"
#include "bench/fio.h"
#include "bench/image.h"
#include "storage/format/checksum.h"
#include "storage/format/chunk.h"
#include "storage/volume/layout.h"
#include "storage/volume/part_reader.h"
#include "storage/volume/volume.h"

namespace holdfast::bench {
namespace {

struct Setup {
  std::unique_ptr<Volume> volume;
  std::vector<SealedImage> images;
};

Result<Setup> Prepare(const BenchOptions& options, int files, uint64_t bytes,
                      Pages pages = Pages::kAsASlot) {
  Setup setup;
  HOLDFAST_ASSIGN_OR_RETURN(auto dir, OpenDirectory(options.dir + "/volume", IoOptions{}));
  std::vector<std::unique_ptr<Directory>> dirs;
  dirs.push_back(std::move(dir));
  VolumeOptions volume;
  volume.cluster = "bench";
  volume.node = "bench";
  HOLDFAST_ASSIGN_OR_RETURN(setup.volume, Volume::Open(std::move(dirs), volume, Clock::Real()));
  for (int file = 0; file < files; ++file) {
    HOLDFAST_ASSIGN_OR_RETURN(
        SealedImage image,
        SealedImage::Make(static_cast<uint32_t>(file), static_cast<uint32_t>(files), bytes, pages));
    setup.volume->RegisterMemory(image.memory());
    setup.images.push_back(std::move(image));
  }
  return setup;
}

Status Publish(Setup& setup, size_t file, uint64_t step) {
  SealedImage& image = setup.images[file];
  HOLDFAST_RETURN_IF_ERROR(image.Restamp(step));
  HOLDFAST_ASSIGN_OR_RETURN(auto writer,
                            setup.volume->CreateShard(image.seal().identity, image.bytes()));
  HOLDFAST_RETURN_IF_ERROR(writer->Advance(image.bytes().size()));
  return writer->Publish(image.seal());
}

/// Runs `work(file)` on one thread per file. Returns the first error.
Status InParallel(size_t files, const std::function<Status(size_t)>& work) {
  std::vector<Status> results(files);
  std::vector<std::thread> threads;
  for (size_t file = 0; file < files; ++file) {
    threads.emplace_back([&, file] { results[file] = work(file); });
  }
  for (std::thread& thread : threads) thread.join();
  for (Status& status : results) HOLDFAST_RETURN_IF_ERROR(status);
  return Status::Ok();
}

Result<std::vector<BenchResult>> RunWith(const BenchOptions& options, int files, uint64_t bytes) {
  HOLDFAST_ASSIGN_OR_RETURN(Setup setup, Prepare(options, files, bytes));
  std::string fio_dir = options.dir + "/fio";
  std::filesystem::create_directories(fio_dir);
  FioJob write{fio_dir, true, bytes, files};
  HOLDFAST_ASSIGN_OR_RETURN(write, BestFio(write, options.quick));
  std::vector<double> ours;
  std::vector<double> reference;
  const int rounds = 3;
  for (int round = 0; round < rounds; ++round) {
    uint64_t step = static_cast<uint64_t>(round) + 1;
    Status status;
    ours.push_back(SecondsOf([&] {
      status = InParallel(setup.images.size(), [&](size_t f) { return Publish(setup, f, step); });
    }));
    HOLDFAST_RETURN_IF_ERROR(status);
    HOLDFAST_ASSIGN_OR_RETURN(double seconds, RunFio(write));
    reference.push_back(seconds);
    if (round + 1 < rounds) {
      HOLDFAST_RETURN_IF_ERROR(setup.volume->RemoveVersion("bench", {Incarnation{1}, Step{step}}));
    }
  }
  double gigabytes = static_cast<double>(bytes) * files / 1e9;
  std::vector<BenchResult> results = {
      {.name = fmt::format("disk_write_{}", files),
       .ratio = Median(reference) / Median(ours),
       .ours = gigabytes / Median(ours),
       .reference = gigabytes / Median(reference),
       .unit = "GB/s",
       .goal = ">=0.95",
       .note = fmt::format("slot → durable ÷ fio bs={} depth={} end_fsync, {} × {} MiB",
                           write.block_bytes, write.depth, files, bytes >> 20)}};

  FioJob read{fio_dir, false, bytes, files};
  HOLDFAST_ASSIGN_OR_RETURN(read, BestFio(read, options.quick));
  ours.clear();
  reference.clear();
  for (int round = 0; round < rounds; ++round) {
    Status status;
    ours.push_back(SecondsOf([&] {
      status = InParallel(setup.images.size(), [&](size_t f) {
        auto seal = setup.volume->ReadShard(setup.images[f].seal().identity.key(),
                                            setup.images[f].memory(), [](uint64_t) {});
        return seal ? Status::Ok() : seal.error();
      });
    }));
    HOLDFAST_RETURN_IF_ERROR(status);
    HOLDFAST_ASSIGN_OR_RETURN(double seconds, RunFio(read));
    reference.push_back(seconds);
  }
  results.push_back({.name = fmt::format("disk_read_{}", files),
                     .ratio = Median(reference) / Median(ours),
                     .ours = gigabytes / Median(ours),
                     .reference = gigabytes / Median(reference),
                     .unit = "GB/s",
                     .goal = ">=0.95",
                     .note = fmt::format("disk → verified slot ÷ fio read bs={} depth={}",
                                         read.block_bytes, read.depth)});
  return results;
}

/// Reads the published shard of `image` into its memory, without checks of the bytes.
Status ReadOnly(Directory& dir, SealedImage& image, const ReadPace& pace) {
  const ShardIdentity& identity = image.seal().identity;
  SealPart part;
  part.image_end = part.file_bytes = image.seal().image_bytes;
  const std::string path =
      VersionPath(identity.job, identity.version) + "/" + PartName(identity.rank, 0, 1);
  HOLDFAST_ASSIGN_OR_RETURN(auto reader,
                            PartReader::Open(dir, path, part, image.seal().image_bytes));
  return reader->Read({image.memory().data(), RoundUpTo(part.image_end, kChunkBytes)}, pace,
                      [](uint64_t) { return Status::Ok(); });
}

Status Checksum(const SealedImage& image) {
  for (uint64_t i = 0; i < image.seal().chunk_crcs.size(); ++i) {
    const uint64_t at = i * kChunkBytes;
    const uint64_t bytes = std::min(kChunkBytes, image.bytes().size() - at);
    if (!IsChunk(image.seal(), i, image.bytes().subspan(at, bytes))) {
      return DataLossError("the benchmark read wrong bytes");
    }
  }
  return Status::Ok();
}

double ThreadCpuSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

/// The stages of a read into a slot, one file, all compared with fio in the same round.
Result<std::vector<BenchResult>> Stages(const BenchOptions& options, Pages pages) {
  const uint64_t bytes = options.quick ? 256ULL << 20 : 1ULL << 30;
  HOLDFAST_ASSIGN_OR_RETURN(Setup setup, Prepare(options, 1, bytes, pages));
  HOLDFAST_RETURN_IF_ERROR(Publish(setup, 0, 1));
  FioJob fio{options.dir + "/fio", true, bytes, 1};
  std::filesystem::create_directories(fio.dir);
  HOLDFAST_RETURN_IF_ERROR(RunFio(fio) ? Status::Ok() : InternalError("fio did not run"));
  fio.write = false;
  HOLDFAST_ASSIGN_OR_RETURN(fio, BestFio(fio, options.quick));

  SealedImage& image = setup.images[0];
  HOLDFAST_ASSIGN_OR_RETURN(const auto dir, OpenDirectory(options.dir + "/volume", IoOptions{}));
  dir->RegisterMemory(image.memory());
  constexpr uint64_t kMiB = 1 << 20;
  const std::vector<std::pair<std::string, std::function<Status()>>> stages = {
      {"read", [&] { return ReadOnly(*dir, image, PaceOf(IoOptions{})); }},
      {"read_1m",
       [&] {
         return ReadOnly(*dir, image, {kMiB, 16 * kMiB});
       }},
      {"checksum", [&] { return Checksum(image); }},
      {"verified",
       [&] {
         auto seal =
             setup.volume->ReadShard(image.seal().identity.key(), image.memory(), [](uint64_t) {});
         return seal ? Status::Ok() : seal.error();
       }},
  };
  std::vector<std::vector<double>> seconds(stages.size());
  std::vector<std::vector<double>> ratios(stages.size());
  std::vector<std::vector<double>> cpu_seconds(stages.size());
  std::vector<double> reference;
  for (uint32_t round = 0; round < options.repeat; ++round) {
    HOLDFAST_ASSIGN_OR_RETURN(const double fio_seconds, RunFio(fio));
    reference.push_back(fio_seconds);
    for (size_t i = 0; i < stages.size(); ++i) {
      Status status;
      const double cpu = ThreadCpuSeconds();
      seconds[i].push_back(SecondsOf([&] { status = stages[i].second(); }));
      cpu_seconds[i].push_back(ThreadCpuSeconds() - cpu);
      HOLDFAST_RETURN_IF_ERROR(status);
      ratios[i].push_back(fio_seconds / seconds[i].back());
    }
  }
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  std::vector<BenchResult> results;
  for (size_t i = 0; i < stages.size(); ++i) {
    const auto [least, most] = std::ranges::minmax(ratios[i]);
    results.push_back(
        {.name = fmt::format("disk_stage_{}_{}", pages == Pages::kSmall ? "small" : "slot",
                             stages[i].first),
         .ratio = Median(ratios[i]),
         .ours = gigabytes / Median(seconds[i]),
         .reference = gigabytes / Median(reference),
         .unit = "GB/s",
         .goal = "",
         .note = fmt::format("÷ fio read bs={} depth={}; CPU time of the thread {:.0f} ms, "
                             "so at most {:.1f} GB/s",
                             fio.block_bytes, fio.depth, Median(cpu_seconds[i]) * 1e3,
                             gigabytes / Median(cpu_seconds[i])),
         .repetitions = options.repeat,
         .least = least,
         .most = most});
  }
  return results;
}

}  // namespace

Result<std::vector<BenchResult>> RunDisk(const BenchOptions& options) {
  const uint64_t total = options.quick ? 256ULL << 20 : 1ULL << 30;
  std::vector<BenchResult> all;
  for (int files : {1, 4}) {
    BenchOptions own = options;
    own.dir = options.dir + "/files-" + std::to_string(files);
    std::filesystem::create_directories(own.dir);
    HOLDFAST_ASSIGN_OR_RETURN(auto results,
                              RunWith(own, files, total / static_cast<uint64_t>(files)));
    all.insert(all.end(), results.begin(), results.end());
    std::filesystem::remove_all(own.dir);
  }
  return all;
}

Result<std::vector<BenchResult>> RunDiskStages(const BenchOptions& options) {
  std::vector<BenchResult> all;
  for (const Pages pages : {Pages::kAsASlot, Pages::kSmall}) {
    BenchOptions own = options;
    own.dir = options.dir + (pages == Pages::kSmall ? "/small" : "/slot");
    std::filesystem::create_directories(own.dir);
    HOLDFAST_ASSIGN_OR_RETURN(auto results, Stages(own, pages));
    all.insert(all.end(), results.begin(), results.end());
    std::filesystem::remove_all(own.dir);
  }
  return all;
}

}  // namespace holdfast::bench
