// The time from Save to durable, compared with each stage on its own on the same bytes. The stages
// overlap if the total is hardly longer than the slowest stage.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "bench/bench.h"
#include "bench/image.h"
#include "bench/live_client.h"
#include "storage/volume/volume.h"

namespace holdfast::bench {
namespace {

struct Stages {
  std::vector<double> copy;
  std::vector<double> checksum;
  std::vector<double> disk;
};

Status MeasureStages(LiveClient& live, SealedImage& image, Volume& volume, uint64_t round,
                     Stages* stages) {
  stages->copy.push_back(SecondsOf([&] {
    std::byte* to = image.memory().data();
    for (auto& tensor : live.tensors) {
      std::memcpy(to, tensor.data(), tensor.size() * sizeof(float));
      to += tensor.size() * sizeof(float);
    }
  }));
  uint64_t sink = 0;
  stages->checksum.push_back(SecondsOf([&] {
    for (uint64_t at = 0; at + kChunkBytes <= image.bytes().size(); at += kChunkBytes) {
      sink += Crc32c(image.bytes().subspan(at, kChunkBytes));
    }
  }));
  HOLDFAST_RETURN_IF_ERROR(image.Restamp(round + 1));
  Status status = sink == 0 ? InternalError("checksums of random data are all zero") : Status::Ok();
  stages->disk.push_back(SecondsOf([&] {
    auto writer = volume.CreateShard(image.seal().identity, image.bytes());
    if (!writer) {
      status = writer.error();
      return;
    }
    status = (*writer)->Advance(image.bytes().size());
    if (status.ok()) status = (*writer)->Publish(image.seal());
  }));
  HOLDFAST_RETURN_IF_ERROR(status);
  return volume.RemoveVersion("bench", image.seal().identity.version);
}

}  // namespace

Result<std::vector<BenchResult>> RunStreaming(const BenchOptions& options) {
  const uint64_t bytes = options.quick ? 256ULL << 20 : 1ULL << 30;
  HOLDFAST_ASSIGN_OR_RETURN(LiveClient live, LiveClient::Start(options.dir, bytes, 64, 1));
  HOLDFAST_ASSIGN_OR_RETURN(v1::Client client, live.Open("streaming"));
  HOLDFAST_ASSIGN_OR_RETURN(SealedImage image, SealedImage::Make(0, 1, bytes));
  HOLDFAST_ASSIGN_OR_RETURN(auto dir, OpenDirectory(options.dir + "/stage", IoOptions{}));
  std::vector<std::unique_ptr<Directory>> dirs;
  dirs.push_back(std::move(dir));
  HOLDFAST_ASSIGN_OR_RETURN(auto volume,
                            Volume::Open(std::move(dirs), {"bench", "bench", {}}, Clock::Real()));
  volume->RegisterMemory(image.memory());

  Stages stages;
  std::vector<double> whole;
  const uint64_t rounds = 4;
  for (uint64_t round = 0; round < rounds; ++round) {
    Status status;
    double seconds = SecondsOf([&] {
      v1::Status saved = client.Save(round + 1);
      if (saved.ok()) {
        saved = client.Wait(round + 1, v1::Tier::kDisk, std::chrono::seconds(120));
      }
      status = FromClient(saved);
    });
    HOLDFAST_RETURN_IF_ERROR(status);
    // Skip the first save: it touches every page of its slot for the first time.
    if (round > 0) whole.push_back(seconds);
    HOLDFAST_RETURN_IF_ERROR(MeasureStages(live, image, *volume, round, &stages));
  }
  double copy = Median(stages.copy);
  double checksum = Median(stages.checksum);
  double disk = Median(stages.disk);
  double slowest = std::max({copy, checksum, disk});
  return std::vector<BenchResult>{
      {.name = "streaming",
       .ratio = Median(whole) / slowest,
       .ours = Median(whole) * 1000,
       .reference = slowest * 1000,
       .unit = "ms",
       .goal = "<=1.15",
       .note = fmt::format("{} MiB; stages: copy {:.0f} ms, checksum {:.0f} ms, disk {:.0f} ms",
                           bytes >> 20, copy * 1000, checksum * 1000, disk * 1000)}};
}

}  // namespace holdfast::bench
