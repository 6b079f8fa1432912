// `export --from-data-dir` assembles complete tensors from boxes, gives them the right names,
// refuses unsuitable requests and leaves no partial result.

#include <signal.h>
#include <sys/resource.h>

#include <map>

#include "tests/cli/cli_test_util.h"

namespace holdfast::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kTallRows = 400;
constexpr uint64_t kWideColumns = 1000;

/// The value of element (row, column) of a tensor, in all boxes that have it.
uint32_t ElementAt(uint64_t seed, uint64_t row, uint64_t column) {
  return static_cast<uint32_t>((seed * 1'000'003 + row) * 2'654'435'761ULL + column);
}

struct BoxOf {
  std::string name;
  uint64_t rows = 0, columns = 0;  // of the complete tensor
  uint64_t top = 0, left = 0;      // where the box begins
  uint64_t height = 0, width = 0;  // of the box
  uint64_t seed = 0;
};

/// Publishes one rank's shard: boxes of U32 matrices, and extras.
void PublishBoxes(Volume& volume, const ShardIdentity& identity, const std::vector<BoxOf>& boxes,
                  const std::map<std::string, std::string>& extras) {
  std::vector<TensorSpec> specs;
  for (const BoxOf& b : boxes) {
    specs.push_back(
        {b.name, DType::kU32, {b.height, b.width}, {b.rows, b.columns}, {b.top, b.left}});
  }
  auto layout = ImageLayout::Plan(specs);
  ASSERT_TRUE(layout.has_value()) << layout.error().ToString();
  std::vector<ExtraSize> sizes;
  std::string tail;
  for (const auto& [name, bytes] : extras) {
    sizes.push_back({name, bytes.size()});
    tail += bytes;
  }
  std::string header = *layout->RenderHeader(identity, sizes);
  TestImage image(identity, 1);  // replaced below
  image.slot =
      *AlignedBuffer::Allocate(header.size() + layout->tensor_bytes() + tail.size() + kBlockBytes);
  image.image = image.slot.span().first(header.size() + layout->tensor_bytes() + tail.size());
  std::memcpy(image.image.data(), header.data(), header.size());
  for (size_t i = 0; i < boxes.size(); ++i) {
    const BoxOf& b = boxes[layout->original_index()[i]];
    std::byte* at = image.image.data() + header.size() + layout->tensors()[i].begin;
    for (uint64_t row = 0; row < b.height; ++row) {
      for (uint64_t column = 0; column < b.width; ++column, at += 4) {
        uint32_t value = ElementAt(b.seed, b.top + row, b.left + column);
        std::memcpy(at, &value, 4);
      }
    }
  }
  std::memcpy(image.image.data() + header.size() + layout->tensor_bytes(), tail.data(),
              tail.size());
  Publish(volume, image);
}

std::vector<std::string> SortedNamesIn(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// Tensors of a safetensors file, as bytes.
std::map<std::string, std::string> TensorsIn(const std::string& path) {
  std::string bytes = ReadText(path);
  auto image = ParseImage(std::as_bytes(std::span(bytes)), bytes.size());
  EXPECT_TRUE(image.has_value()) << path << ": " << image.error().ToString();
  std::map<std::string, std::string> tensors;
  if (!image) return tensors;
  EXPECT_EQ(image->metadata["format"], "pt");
  for (const PlacedTensor& tensor : image->tensors) {
    EXPECT_FALSE(tensor.spec.sharded());
    tensors[tensor.spec.name] = bytes.substr(image->data_offset + tensor.begin, tensor.bytes());
  }
  return tensors;
}

std::string CompleteTensor(uint64_t seed, uint64_t rows, uint64_t columns) {
  std::string bytes;
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t column = 0; column < columns; ++column) {
      uint32_t value = ElementAt(seed, row, column);
      bytes.append(reinterpret_cast<const char*>(&value), 4);
    }
  }
  return bytes;
}

/// Four ranks on two nodes, tensor-parallel by two and sharded by two: `wide` in a grid of boxes
/// of unequal size, `tall` by rows, `norm` on all of them; and an optimizer's tensors.
class ExportTest : public testing::Test {
 protected:
  void SetUp() override {
    for (uint32_t node = 0; node < 2; ++node)
      MakeNode(folder_ / ("n" + std::to_string(node)), node);
  }

  void MakeNode(const std::string& dir, uint32_t node) {
    auto volume = OpenVolume({dir});
    for (uint32_t rank : {2 * node, 2 * node + 1}) {
      const uint64_t top = rank / 2 == 0 ? 0 : 301;
      const uint64_t left = rank % 2 == 0 ? 0 : 333;
      const uint64_t height = rank / 2 == 0 ? 301 : 699;
      const uint64_t width = rank % 2 == 0 ? 333 : kWideColumns - 333;
      std::vector<BoxOf> boxes = {
          {"model.wide", 1000, kWideColumns, top, left, height, width, 1},
          {"model.tall", kTallRows, 3, rank * 100, 0, 100, 3, 2},
          {"model.norm", 1, 7, 0, 0, 1, 7, 3 + rank},  // replicas differ: the first is used
          {"optim.state.wide.exp_avg", 1000, kWideColumns, top, left, height, width, 9}};
      PublishBoxes(*volume, Identity("lm", 1, 20, rank, 4), boxes,
                   {{"torch.layout", R"({"format":1,"parts":{"model":null,"optim":[]},"aliases":)"
                                     R"({"model.head":"model.wide"},"types":{}})"}});
    }
  }

  CliResult Export(std::vector<std::string> more, const CliOptions& options = {}) const {
    std::vector<std::string> args = {"export", "lm", "--to", folder_ / "out"};
    args.insert(args.end(), more.begin(), more.end());
    args.insert(args.end(), {"--from-data-dir", folder_ / "n0", folder_ / "n1"});
    return RunCli(args, options);
  }

  const std::string wide_ = CompleteTensor(1, 1000, kWideColumns);
  const std::string tall_ = CompleteTensor(2, kTallRows, 3);
  const std::string norm_ = CompleteTensor(3, 1, 7);
  TempFolder folder_;
};

TEST_F(ExportTest, EveryTensorIsComplete) {
  CliResult result = Export({"--format", "safetensors"});
  ASSERT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_THAT(SortedNamesIn(folder_ / "out"), ElementsAre("model.safetensors"));
  auto found = TensorsIn(folder_ / "out/model.safetensors");
  EXPECT_EQ(found.size(), 4U);
  EXPECT_TRUE(found["model.wide"] == wide_);
  EXPECT_TRUE(found["model.tall"] == tall_);
  EXPECT_TRUE(found["model.norm"] == norm_);
  EXPECT_TRUE(found["optim.state.wide.exp_avg"] == CompleteTensor(9, 1000, kWideColumns));
}

TEST_F(ExportTest, ExportsTheModelForTransformers) {
  CliResult result = Export({"--format", "hf", "--max-shard-size", "1MB", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_EQ(result.Json()["exported"], true);
  EXPECT_THAT(SortedNamesIn(folder_ / "out"),
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model.safetensors.index.json"));
  auto index = nlohmann::json::parse(ReadText(folder_ / "out/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], wide_.size() + tall_.size() + norm_.size());
  EXPECT_EQ(index["weight_map"]["wide"], "model-00002-of-00002.safetensors");
  auto first = TensorsIn(folder_ / "out/model-00001-of-00002.safetensors");
  EXPECT_TRUE(first["tall"] == tall_ && first["norm"] == norm_);
  EXPECT_TRUE(TensorsIn(folder_ / "out/model-00002-of-00002.safetensors")["wide"] == wide_);
  EXPECT_EQ(Export({"--format", "hf"}).exit_code, 1) << "never overwrites";
}

TEST_F(ExportTest, ExportsOneEntryAndRefusesOthers) {
  CliResult none = Export({"--format", "hf", "--entry", "ema"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("no tensors of an entry 'ema'; it has 'model', 'optim'"));
  EXPECT_EQ(Export({"--format", "onnx"}).exit_code, 64);
  EXPECT_EQ(Export({"--format", "hf", "--max-shard-size", "0"}).exit_code, 64);
  CliResult dry = Export({"--format", "safetensors", "--entry", "optim", "--dry-run"});
  EXPECT_EQ(dry.exit_code, 0) << dry.Shown();
  EXPECT_THAT(dry.out, AllOf(HasSubstr("saved by 4 ranks"), HasSubstr("model.safetensors")));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(ExportTest, AHeaderMayHaveManyChunks) {
  std::vector<BoxOf> boxes;
  for (uint64_t i = 0; i < 12'000; ++i)
    boxes.push_back({"model." + std::to_string(i) + std::string(80, 'n'), 1, 1, 0, 0, 1, 1, i});
  {
    auto volume = OpenVolume({folder_ / "many"});
    PublishBoxes(*volume, Identity("many", 1, 1, 0, 1), boxes, {{"torch.layout", "{}"}});
  }
  CliResult result = RunCli({"export", "many", "--to", folder_ / "out", "--format", "safetensors",
                             "--from-data-dir", folder_ / "many"});
  ASSERT_EQ(result.exit_code, 0) << result.Shown();
  auto found = TensorsIn(folder_ / "out/model.safetensors");
  ASSERT_EQ(found.size(), boxes.size());
  for (const BoxOf& box : boxes) ASSERT_TRUE(found[box.name] == CompleteTensor(box.seed, 1, 1));
}

TEST_F(ExportTest, ElementsThatNoRankSavedAreNamed) {
  TempFolder other;
  auto volume = OpenVolume({other / "n0"});
  PublishBoxes(*volume, Identity("lm", 1, 1, 0, 1), {{"w", 10, 10, 0, 0, 10, 6, 1}}, {});
  CliResult result = RunCli({"export", "lm", "--format", "safetensors", "--to", other / "out",
                             "--from-data-dir", other / "n0"});
  EXPECT_EQ(result.exit_code, 2) << result.Shown();
  EXPECT_THAT(result.err, HasSubstr("'w' is incomplete: no rank saved [0:10, 6:10]"));
  EXPECT_FALSE(fs::exists(other / "out"));
}

TEST_F(ExportTest, WithADamagedReplicaAnotherIsReadOrNothingIsWritten) {
  FlipBit(folder_ / "n1/lm/v1-20/rank-3.safetensors", (1 << 20) + 9);
  CliResult damaged = Export({"--format", "safetensors"});
  EXPECT_EQ(damaged.exit_code, 2) << damaged.Shown();
  EXPECT_THAT(damaged.err, testing::ContainsRegex("rank-3.safetensors: chunk 1 "));
  EXPECT_THAT(SortedNamesIn(folder_ / "out"), IsEmpty());
  MakeNode(folder_ / "copy", 1);
  CliResult result = RunCli({"export", "lm", "--to", folder_ / "out", "--format", "safetensors",
                             "--from-data-dir", folder_ / "n0", folder_ / "n1", folder_ / "copy"});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_THAT(result.err, HasSubstr("trying disk on " + (folder_ / "copy")));
  EXPECT_TRUE(TensorsIn(folder_ / "out/model.safetensors")["model.wide"] == wide_);
}

TEST_F(ExportTest, KilledBeforeTheFirstRenameNoFileIsPublished) {
  CliOptions options;
  options.env = {"HOLDFAST_CRASH=cli.before_rename"};
  EXPECT_EQ(Export({"--format", "hf"}, options).exit_code, kBySignal + SIGKILL);
  for (const std::string& name : SortedNamesIn(folder_ / "out")) EXPECT_EQ(name[0], '.') << name;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // both keep more memory
TEST_F(ExportTest, MemoryIsBounded) {
  // A model of 192 MiB, column-sharded over two ranks.
  {
    auto volume = OpenVolume({folder_ / "big"});
    for (uint32_t rank : {0, 1}) {
      PublishBoxes(*volume, Identity("big", 1, 1, rank, 2),
                   {{"model.w", 12'000, 4096, 0, rank * 2048, 12'000, 2048, 1}}, {});
    }
  }
  CliResult result = RunCli({"export", "big", "--to", folder_ / "big-out", "--format", "hf",
                             "--from-data-dir", folder_ / "big"});
  EXPECT_EQ(result.exit_code, 0) << result.Shown();
  EXPECT_GT(fs::file_size(folder_ / "big-out/model-00001-of-00001.safetensors"), 187U << 20);
  rusage used{};
  ASSERT_EQ(::getrusage(RUSAGE_CHILDREN, &used), 0);  // the maximum of all children
  EXPECT_LT(used.ru_maxrss, 96 << 10) << "KiB";
}
#endif

}  // namespace
}  // namespace holdfast::cli
