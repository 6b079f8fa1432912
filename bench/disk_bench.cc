// Writes sealed slots durably (fsync, rename, directory fsync) and reads them, compared with the
// best fio setting.

#include <fmt/format.h>
#include <sys/mman.h>

#include <filesystem>
#include <thread>

#include "bench/bench.h"
#include "bench/fio.h"
#include "bench/image.h"
#include "storage/volume/volume.h"

namespace holdfast::bench {
namespace {

struct Setup {
  std::unique_ptr<Volume> volume;
  std::vector<SealedImage> images;
};

Result<Setup> Prepare(const BenchOptions& options, int files, uint64_t bytes) {
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
        SealedImage::Make(static_cast<uint32_t>(file), static_cast<uint32_t>(files), bytes));
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

}  // namespace holdfast::bench
