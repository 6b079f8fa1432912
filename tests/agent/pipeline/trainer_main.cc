#include <unistd.h>

#include <cstdio>
#include <string>

#include "tests/agent/pipeline/harness.h"

// A trainer in a separate process, which tests can kill. `agent_pipeline_trainer SOCKET STEP
// TENSOR_BYTES` saves step STEP, copies half of step STEP + 1, prints "half" and waits.
int main(int argc, char** argv) {
  using namespace holdfast::agent;
  if (argc != 4) return 64;
  const uint64_t step = std::stoull(argv[2]);
  const uint64_t tensor_bytes = std::stoull(argv[3]);
  auto trainer = TestTrainer::Connect(argv[1], {});
  if (!trainer) {
    std::fprintf(stderr, "%s\n", trainer.error().message().c_str());
    return 1;
  }
  if (!trainer->Save(step, tensor_bytes)) return 2;
  const auto image = MakeImage(trainer->Identity(step + 1), tensor_bytes);
  auto reply = trainer->BeginSave(step + 1, image.size(), 1000);
  if (!reply || reply->code != 0) return 3;
  trainer->Copy(reply->slot, image, image.size() / 2);
  std::printf("half\n");
  std::fflush(stdout);
  for (;;) ::pause();
}
