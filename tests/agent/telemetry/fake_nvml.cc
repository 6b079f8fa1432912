// A fake NVML. Its answers are in a script next to the library: the library's path plus ".script".
// The script is read again at each wait. Lines:
//   init RESULT | devices COUNT | register RESULT   the results of these functions
//   event DEVICE XID [TYPE]                         one event; an unknown DEVICE is a wild handle
//   fail RESULT                                     one wait fails
//   hang                                            from now on waits never return

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "agent/telemetry/nvml.h"

namespace {
using holdfast::agent::NvmlEvent;
using holdfast::agent::NvmlPciInfo;

struct Script {
  int init = 0;
  int registered = 0;
  unsigned int devices = 1;
  struct Answer {
    int result = 0;
    bool hang = false;
    NvmlEvent event = {};
  };
  std::vector<Answer> answers;
};

void* HandleOf(uintptr_t device) { return reinterpret_cast<void*>(0x1000 + device); }

Script Read() {
  Dl_info self{};
  ::dladdr(reinterpret_cast<const void*>(&Read), &self);
  std::ifstream file(std::string(self.dli_fname) + ".script");
  Script script;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "init") words >> script.init;
    if (what == "devices") words >> script.devices;
    if (what == "register") words >> script.registered;
    if (what != "event" && what != "fail" && what != "hang") continue;
    Script::Answer& answer = script.answers.emplace_back();
    answer.hang = what == "hang";
    if (what == "fail") words >> answer.result;
    uintptr_t device = 0;
    words >> device >> answer.event.data;
    answer.event.device = HandleOf(device);
    answer.event.type = holdfast::agent::kNvmlXidEvent;
    unsigned long long type = 0;
    if (words >> type) answer.event.type = type;
  }
  return script;
}
}  // namespace

extern "C" {
int nvmlInit_v2() { return Read().init; }
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int result) { return result == 9 ? "Driver Not Loaded" : nullptr; }
int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = Read().devices;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  *device = HandleOf(index);
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, NvmlPciInfo* info) {
  // For the first device a text without a NUL, which is not a bus ID.
  std::fill(std::begin(info->bus_id), std::end(info->bus_id), '\n');
  const auto index = reinterpret_cast<uintptr_t>(device) - 0x1000;
  if (index == 0) return 0;
  const std::string text = "00000000:C" + std::to_string(index) + ":00.0";
  std::copy_n(text.c_str(), text.size() + 1, info->bus_id);
  return 0;
}
int nvmlEventSetCreate(void** set) {
  *set = HandleOf(0);
  return 0;
}
int nvmlEventSetFree(void* /*set*/) { return 0; }
int nvmlDeviceRegisterEvents(void* /*device*/, unsigned long long /*types*/, void* /*set*/) {
  return Read().registered;
}
int nvmlEventSetWait_v2(void* /*set*/, NvmlEvent* event, unsigned int timeout_ms) {
  static size_t next = 0;
  for (unsigned int waited = 0; waited < timeout_ms; waited += 10) {
    const Script script = Read();
    if (next < script.answers.size()) {
      const Script::Answer& answer = script.answers[next];
      while (answer.hang) ::pause();
      ++next;
      *event = answer.event;
      return answer.result;
    }
    ::usleep(10'000);
  }
  return holdfast::agent::kNvmlTimeout;
}
}
