// The source of chunks that an agent sends to operators.

#include "cli/shards/agent_chunks.h"
#include "tests/cli/cli_test_util.h"
#include "tests/cli/volume_agent.h"
#include "tests/storage/chunks/source_contract.h"

namespace holdfast::cli {
namespace {

/// An agent with rank 1 of version 1-20 of "lm", in five chunks.
class AgentWorld final : public SourceWorld {
 public:
  AgentWorld()
      : image_(Identity("lm", 1, 20, 1, 2), 18'000), seal_(image_.Seal()), agent_(MakeVolume()) {
    served_ = Serve<agent::Agent>(agent_, folder_ / "a.sock");
    bytes_.assign(image_.image.begin(), image_.image.end());
    source_ = Make(Rank{1});
    unknown_ = Make(Rank{50});
  }
  ~AgentWorld() override { served_.server->Shutdown(std::chrono::system_clock::time_point::min()); }

  ChunkSource& source() override { return *source_; }
  ChunkSource& unknown() override { return *unknown_; }
  const ShardSeal& seal() override { return seal_; }
  const std::vector<std::byte>& image() override { return bytes_; }
  void Corrupt(uint64_t chunk) override {
    FlipBit(folder_ / "n0/lm/v1-20/rank-1.safetensors", chunk * kChunkBytes + 9);
  }
  void Remove() override { fs::remove_all(folder_ / "n0/lm"); }

 private:
  Volume& MakeVolume() {
    volume_ = OpenVolume({folder_ / "n0"});
    Publish(*volume_, image_);
    return *volume_;
  }
  std::unique_ptr<AgentChunks> Make(Rank rank) {
    return std::make_unique<AgentChunks>("n0", "unix:" + (folder_ / "a.sock"), Tier::kDisk,
                                         ShardKey{"lm", {Incarnation{1}, Step{20}}, rank}, options_,
                                         Clock::Real());
  }

  TempFolder folder_;
  const TestImage image_;
  const ShardSeal seal_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<Volume> volume_;
  VolumeAgent agent_;
  Served served_;
  GlobalOptions options_;
  std::unique_ptr<AgentChunks> source_;
  std::unique_ptr<AgentChunks> unknown_;
};

}  // namespace
}  // namespace holdfast::cli

namespace holdfast {
namespace {

INSTANTIATE_TEST_SUITE_P(Agent, SourceContract,
                         testing::Values(SourceKind{"disk",
                                                    []() -> std::unique_ptr<SourceWorld> {
                                                      return std::make_unique<cli::AgentWorld>();
                                                    },
                                                    SourceCost::kPeerDisk, "disk on n0"}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace holdfast
