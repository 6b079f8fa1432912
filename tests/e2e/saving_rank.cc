// One rank of a job, for drills: it saves a tensor of known bytes every 100 ms until it is killed.
//
//   saving_rank SOCKET JOB RANK WORLD BYTE FIRST STRIDE
//
// All bytes of the tensor "w" equal BYTE, and each save has a sample of them, as of a replica that
// all ranks have. The steps are FIRST, FIRST + STRIDE, and so on.

#define HOLDFAST_HPP_EXPLICIT_NAMESPACE
#include <holdfast/holdfast.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

int main(int argc, char** argv) {
  namespace v1 = holdfast::v1;
  if (argc != 8) return 64;
  std::vector<unsigned char> bytes(4096, static_cast<unsigned char>(std::atoi(argv[5])));
  const v1::Tensor state[] = {v1::Whole("w", bytes, {bytes.size()})};
  v1::Options options;
  options.socket_path = argv[1];
  options.job = argv[2];
  options.rank = static_cast<uint32_t>(std::atoi(argv[3]));
  options.world = static_cast<uint32_t>(std::atoi(argv[4]));
  options.run_id = "run-1";
  auto client = v1::Client::Open(options, state);
  if (!client.ok()) {
    std::fprintf(stderr, "saving_rank: %s\n", client.status().ToString().c_str());
    return 1;
  }
  const auto stride = static_cast<uint64_t>(std::atoi(argv[7]));
  for (auto step = static_cast<uint64_t>(std::atoi(argv[6]));; step += stride) {
    // A save without a free slot skips its step.
    (void)(*client).Save(step, {{"holdfast.samples", R"([["w", 0, 4096, "w", 0]])"}});
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}
