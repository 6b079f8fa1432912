// Feeds every file of the named folders, and variants of each, to one fuzzer. With it the normal
// build, whose compiler has no libFuzzer, also runs the inputs that fuzzing found.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {
namespace fs = std::filesystem;
constexpr int kVariants = 64;  // of each file
using Input = std::vector<uint8_t>;

/// xorshift64, so that every run makes the same variants.
uint64_t Next(uint64_t& state) {
  state ^= state << 13U;
  state ^= state >> 7U;
  state ^= state << 17U;
  return state;
}

Input VariantOf(Input input, uint64_t& random) {
  for (uint64_t changes = 1 + Next(random) % 4; changes > 0 && !input.empty(); --changes) {
    const auto at = static_cast<size_t>(Next(random) % input.size());
    const auto byte = static_cast<uint8_t>(Next(random));
    const auto where = input.begin() + static_cast<std::ptrdiff_t>(at);
    switch (Next(random) % 5) {
      case 0:
        input[at] ^= static_cast<uint8_t>(1U << (byte % 8U));
        break;
      case 1:
        input[at] = byte;
        break;
      case 2:
        input.insert(where, byte);
        break;
      case 3:
        input.erase(where);
        break;
      default:
        input.resize(at);
        break;
    }
  }
  return input;
}

/// Copies the input, so that a read beyond its end is also beyond a heap block.
void Run(const Input& input) {
  const Input exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}
}  // namespace

int main(int argc, char** argv) {
  size_t files = 0;
  uint64_t random = 0x9e3779b97f4a7c15;
  for (int i = 1; i < argc; ++i) {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(argv[i])) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    for (const fs::path& path : paths) {
      std::ifstream file(path, std::ios::binary);
      const Input input{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
      // Flush, so that the output of a crash names the file.
      std::printf("%s\n", path.c_str());
      std::fflush(stdout);
      Run(input);
      for (int k = 0; k < kVariants; ++k) Run(VariantOf(input, random));
      ++files;
    }
  }
  Run({});
  std::printf("%zu files, %d variants of each\n", files, kVariants);
  if (files != 0) return EXIT_SUCCESS;
  std::fprintf(stderr, "no files to replay\n");
  return EXIT_FAILURE;
}
