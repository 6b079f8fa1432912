#include "agent/arena/headroom.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>

#include "base/config.h"

namespace holdfast::agent {
namespace {

constexpr uint64_t kLeaveBytes = 64ULL << 20;  // for other processes

/// Returns the number after `key` at the start of a line, e.g. "MemAvailable:" in /proc/meminfo.
/// With an empty `key`, the file contains only the number.
std::optional<uint64_t> NumberInFile(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  uint64_t number = 0;
  if (key.empty()) return file >> number ? std::optional(number) : std::nullopt;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + " ", 0) != 0 && line.rfind(key + "\t", 0) != 0) continue;
    number = std::strtoull(line.c_str() + key.size(), nullptr, 10);
    return number;
  }
  return std::nullopt;
}

struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // key in memory.stat
};

/// Lowers `headroom` to the memory left in one cgroup, if the cgroup has a limit.
void Narrow(const std::string& folder, const std::string& name, const CgroupFiles& files,
            MemoryHeadroom& headroom) {
  auto limit = NumberInFile(folder + files.limit, "");
  auto usage = NumberInFile(folder + files.usage, "");
  if (!limit || !usage) return;
  uint64_t reclaimable = NumberInFile(folder + "memory.stat", files.reclaimable).value_or(0);
  uint64_t used = *usage - std::min(*usage, reclaimable);
  uint64_t left = *limit - std::min(*limit, used);
  if (left < headroom.bytes) headroom = {.bytes = left, .limit = "memory limit of cgroup " + name};
}

/// Lowers `headroom` to the memory left in a cgroup and in its ancestors.
void NarrowUpwards(const std::string& mount, std::string name, const CgroupFiles& files,
                   MemoryHeadroom& headroom) {
  while (!name.empty() && name.back() == '/') name.pop_back();
  for (;;) {
    Narrow(mount + name + "/", name.empty() ? "/" : name, files, headroom);
    if (name.empty()) return;
    name.resize(name.rfind('/') == std::string::npos ? 0 : name.rfind('/'));
  }
}

}  // namespace

MemoryHeadroom AvailableMemory() {
  MemoryHeadroom headroom{.bytes = std::numeric_limits<uint64_t>::max(), .limit = "machine"};
  if (auto kib = NumberInFile("/proc/meminfo", "MemAvailable:")) {
    headroom = {.bytes = *kib << 10, .limit = "free memory of this machine"};
  }
  constexpr CgroupFiles kV1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                            "total_inactive_file"};
  constexpr CgroupFiles kV2{"memory.max", "memory.current", "inactive_file"};
  std::ifstream cgroups("/proc/self/cgroup");
  for (std::string line; std::getline(cgroups, line);) {
    size_t first = line.find(':');
    size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string name = line.substr(second + 1);
    if (controllers == ",,") NarrowUpwards("/sys/fs/cgroup", name, kV2, headroom);
    if (controllers.find(",memory,") != std::string::npos) {
      NarrowUpwards("/sys/fs/cgroup/memory", name, kV1, headroom);
    }
  }
  return headroom;
}

Status CheckHeadroom(uint64_t left, uint64_t bytes) {
  MemoryHeadroom headroom = AvailableMemory();
  if (headroom.bytes >= left && headroom.bytes - left >= kLeaveBytes) {
    return Status::Ok();
  }
  return ResourceExhaustedError(fmt::format(
      "a segment of {} does not fit: {} are available ({}), of which {} stay free for other "
      "processes. Free memory, or save less per rank",
      FormatBytes(bytes), FormatBytes(headroom.bytes), headroom.limit, FormatBytes(kLeaveBytes)));
}

}  // namespace holdfast::agent
