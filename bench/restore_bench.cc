// Restore from memory, compared with one memcpy of the same bytes.

#include <fmt/format.h>

#include <cstring>

#include "bench/bench.h"
#include "bench/image.h"
#include "bench/live_client.h"

namespace holdfast::bench {

Result<std::vector<BenchResult>> RunRestore(const BenchOptions& options) {
  const uint64_t bytes = options.quick ? 256ULL << 20 : 1ULL << 30;
  HOLDFAST_ASSIGN_OR_RETURN(LiveClient live, LiveClient::Start(options.dir, bytes, 64, 1000));
  HOLDFAST_ASSIGN_OR_RETURN(SealedImage image, SealedImage::Make(0, 1, bytes));
  {
    HOLDFAST_ASSIGN_OR_RETURN(v1::Client client, live.Open("first"));
    HOLDFAST_RETURN_IF_ERROR(FromClient(client.Save(1)));
    HOLDFAST_RETURN_IF_ERROR(
        FromClient(client.Wait(1, v1::Tier::kMemory, std::chrono::seconds(60))));
    HOLDFAST_RETURN_IF_ERROR(FromClient(client.Close(std::chrono::seconds(10))));
  }
  std::vector<double> first;
  std::vector<double> again;
  std::vector<double> reference;
  const int rounds = 3;
  for (int round = 0; round < rounds; ++round) {
    HOLDFAST_ASSIGN_OR_RETURN(v1::Client client, live.Open("again-" + std::to_string(round)));
    for (std::vector<double>* times : {&first, &again}) {
      for (auto& tensor : live.tensors) tensor[0] += 1;
      Status status;
      times->push_back(SecondsOf([&] {
        auto restored = client.Restore(std::nullopt, std::chrono::seconds(60));
        if (!restored.ok()) status = FromClient(restored.status());
      }));
      HOLDFAST_RETURN_IF_ERROR(status);
    }
    reference.push_back(SecondsOf([&] {
      const std::byte* from = image.memory().data();
      for (auto& tensor : live.tensors) {
        std::memcpy(tensor.data(), from, tensor.size() * sizeof(float));
        from += tensor.size() * sizeof(float);
      }
    }));
    HOLDFAST_RETURN_IF_ERROR(FromClient(client.Close(std::chrono::seconds(10))));
  }
  double gigabytes = static_cast<double>(live.bytes()) / 1e9;
  auto result = [&](const std::string& name, const std::vector<double>& times,
                    const std::string& note) {
    return BenchResult{.name = name,
                       .ratio = Median(reference) / Median(times),
                       .ours = gigabytes / Median(times),
                       .reference = gigabytes / Median(reference),
                       .unit = "GB/s",
                       .goal = ">=0.95",
                       .note = note};
  };
  return std::vector<BenchResult>{
      result("restore_memory", again,
             "slot → tensors, image already verified, 2 threads ÷ one memcpy"),
      result("restore_memory_cold", first,
             "right after connecting, including decision and verification ÷ one memcpy")};
}

}  // namespace holdfast::bench
