#include "agent/selftest/memory_check.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "agent/selftest/pattern.h"

namespace holdfast::selftest {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kBytesMin = uint64_t{16} << 20U;
constexpr uint64_t kShare = 8;  // one eighth of the available memory is tested
constexpr size_t kThreadsMax = 8;

class Mapping {
 public:
  explicit Mapping(uint64_t bytes)
      : bytes_(bytes),
        address_(
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Mapping() {
    if (ok()) ::munmap(address_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  bool ok() const { return address_ != MAP_FAILED; }
  std::span<uint64_t> words() const {
    return {static_cast<uint64_t*>(address_), bytes_ / sizeof(uint64_t)};
  }

 private:
  const uint64_t bytes_;
  void* const address_;
};

uint64_t WordAt(uint64_t index, bool complement) {
  const uint64_t word = PatternWord(index);
  return complement ? ~word : word;
}

/// Runs `work(thread, begin, end)` over the words, split between threads.
template <typename Work>
void Split(uint64_t words, const Work& work) {
  const size_t threads = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kThreadsMax);
  std::vector<std::jthread> running;
  for (size_t i = 0; i < threads; ++i) {
    const uint64_t begin = words / threads * i;
    const uint64_t end = i + 1 == threads ? words : words / threads * (i + 1);
    running.emplace_back([&work, i, begin, end] { work(i, begin, end); });
  }
}

struct Wrong {
  void Add(const Wrong& other) {
    words += other.words;
    first = std::min(first, other.first);
    bits |= other.bits;
  }

  uint64_t words = 0;
  uint64_t first = ~uint64_t{0};  // index
  uint64_t bits = 0;              // bits that were wrong in any word
};

/// What writing the patterns and reading them back has shown.
struct PatternTest {
  uint32_t passes = 0;
  double write_s = 0;  // without the first pass, which allocates the pages
  double read_s = 0;
  Wrong wrong;
};

/// Counts the words that differ from the pattern.
Wrong FindWrong(std::span<const uint64_t> words, bool complement) {
  std::vector<Wrong> wrong(kThreadsMax);
  Split(words.size(), [&](size_t thread, uint64_t from, uint64_t to) {
    Wrong& mine = wrong[thread];
    for (uint64_t i = from; i < to; ++i) {
      const uint64_t difference = words[i] ^ WordAt(i, complement);
      if (difference == 0) continue;
      ++mine.words;
      mine.first = std::min(mine.first, i);
      mine.bits |= difference;
    }
  });
  Wrong all;
  for (const Wrong& one : wrong) all.Add(one);
  return all;
}

PatternTest TestPatterns(std::span<uint64_t> words, const MemoryCheckOptions& options,
                         steady_clock::time_point begin) {
  PatternTest test;
  for (const bool complement : {false, true}) {
    if (test.passes > 0 && SecondsSince(begin) >= options.seconds) break;
    const auto write_began = steady_clock::now();
    Split(words.size(), [&](size_t, uint64_t from, uint64_t to) {
      for (uint64_t i = from; i < to; ++i) words[i] = WordAt(i, complement);
    });
    if (test.passes > 0) test.write_s += SecondsSince(write_began);
    if (options.damage) options.damage(words);
    const auto read_began = steady_clock::now();
    test.wrong.Add(FindWrong(words, complement));
    test.read_s += SecondsSince(read_began);
    ++test.passes;
  }
  return test;
}

}  // namespace

uint64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  uint64_t kib = 0;
  std::string unit;
  while (file >> name >> kib && std::getline(file, unit)) {
    if (name == "MemAvailable:") return kib << 10U;
  }
  return 0;
}

CheckResult CheckMemory(const MemoryCheckOptions& options) {
  CheckResult result{.part = "memory"};
  const uint64_t available = AvailableMemory();
  uint64_t bytes = std::max(options.bytes, kBytesMin);
  if (available > 0) bytes = std::min(bytes, available / kShare);
  if (bytes < kBytesMin) {
    result.what =
        fmt::format("only {} MiB of memory are available, too little for a test: free some memory",
                    available >> 20U);
    return result;
  }
  const Mapping mapping(bytes);
  if (!mapping.ok()) {
    result.what = fmt::format("the kernel could not allocate {} MiB", bytes >> 20U);
    return result;
  }
  const std::span<uint64_t> words = mapping.words();
  const auto begin = steady_clock::now();
  const PatternTest test = TestPatterns(words, options, begin);
  const Wrong& all = test.wrong;
  const auto moved = static_cast<double>(bytes);
  result.bytes = bytes;
  result.seconds = SecondsSince(begin);
  if (test.write_s > 0) result.write_rate = moved / test.write_s;
  if (test.read_s > 0) result.read_rate = moved * test.passes / test.read_s;
  if (all.words == 0) {
    result.outcome = Outcome::kPassed;
    result.what = fmt::format("{} MiB, {} patterns", bytes >> 20U, test.passes);
  } else {
    result.outcome = Outcome::kFailed;
    result.what = fmt::format(
        "{} of {} words differ from what was written, the first at byte {}, wrong bits {:#018x}",
        all.words, words.size() * test.passes, all.first * sizeof(uint64_t), all.bits);
  }
  return result;
}

}  // namespace holdfast::selftest
