#include "base/crash_point.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string>

namespace holdfast {
namespace {
struct ChosenPoint {
  std::string name;
  std::atomic<long> passes_left{0};
  int signal = SIGKILL;

  ChosenPoint() {
    const char* text = std::getenv("HOLDFAST_CRASH");
    if (text == nullptr) return;
    name = text;
    // With ",stop" at its end, the process is stopped with SIGSTOP instead.
    if (const size_t comma = name.find(','); comma != std::string::npos) {
      if (name.substr(comma) == ",stop") signal = SIGSTOP;
      name.resize(comma);
    }
    size_t colon = name.rfind(':');
    long passes = 1;
    if (colon != std::string::npos) {
      passes = std::strtol(name.c_str() + colon + 1, nullptr, 10);
      name.resize(colon);
    }
    passes_left = passes;
  }
};
}  // namespace

void PassCrashPoint(const char* name) {
  static ChosenPoint chosen;
  if (chosen.name.empty() || chosen.name != name) return;
  if (chosen.passes_left.fetch_sub(1) == 1) ::raise(chosen.signal);
}

}  // namespace holdfast
