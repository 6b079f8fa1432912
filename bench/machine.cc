#include "bench/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace holdfast::bench {
namespace {

/// Returns the text after `key` and `separator` in the first line of `path` that begins with `key`.
/// Empty when there is no such line.
std::string ValueIn(const std::string& path, const std::string& key, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) != 0) continue;
    size_t begin = line.find(separator);
    if (begin == std::string::npos) return "";
    begin = line.find_first_not_of(" \t\"", begin + 1);
    if (begin == std::string::npos) return "";
    const size_t end = line.find_last_not_of(" \t\"");
    return line.substr(begin, end - begin + 1);
  }
  return "";
}

}  // namespace

nlohmann::ordered_json DescribeMachine() {
  nlohmann::ordered_json machine;
  if (std::string cpu = ValueIn("/proc/cpuinfo", "model name", ':'); !cpu.empty()) {
    machine["cpu"] = cpu;
  }
  machine["cores"] = ::sysconf(_SC_NPROCESSORS_ONLN);
  machine["memory_bytes"] = ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE);
  if (std::string system = ValueIn("/etc/os-release", "PRETTY_NAME", '='); !system.empty()) {
    machine["system"] = system;
  }
  utsname kernel{};
  if (::uname(&kernel) == 0) machine["kernel"] = kernel.release;
  double load[3];
  if (::getloadavg(load, 3) == 3) machine["load"] = {load[0], load[1], load[2]};
  return machine;
}

}  // namespace holdfast::bench
