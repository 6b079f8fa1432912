#include "agent/telemetry/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstring>

namespace holdfast::agent {
namespace {
constexpr size_t kErrorTextMax = 128;

template <typename Function>
bool FindFunction(void* library, const char* symbol, Function* into) {
  *into = reinterpret_cast<Function>(::dlsym(library, symbol));
  return *into != nullptr;
}
}  // namespace

std::string Nvml::ErrorText(int result) const {
  const char* text = ErrorString(result);
  if (text == nullptr) return fmt::format("NVML error {}", result);
  return fmt::format("{} (NVML error {})", std::string_view(text, ::strnlen(text, kErrorTextMax)),
                     result);
}

Result<Nvml> LoadNvml(const std::string& library) {
  void* loaded = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    const char* why = ::dlerror();
    return Fail(NotFoundError(why == nullptr ? library : why));
  }
  Nvml nvml;
  const char* missing = nullptr;
  const auto need = [&](const char* symbol, auto* into) {
    if (!FindFunction(loaded, symbol, into)) missing = symbol;
  };
  need("nvmlInit_v2", &nvml.Init);
  need("nvmlShutdown", &nvml.Shutdown);
  need("nvmlErrorString", &nvml.ErrorString);
  need("nvmlDeviceGetCount_v2", &nvml.DeviceGetCount);
  need("nvmlDeviceGetHandleByIndex_v2", &nvml.DeviceGetHandleByIndex);
  need("nvmlDeviceGetPciInfo_v3", &nvml.DeviceGetPciInfo);
  need("nvmlEventSetCreate", &nvml.EventSetCreate);
  need("nvmlEventSetFree", &nvml.EventSetFree);
  need("nvmlDeviceRegisterEvents", &nvml.DeviceRegisterEvents);
  need("nvmlEventSetWait_v2", &nvml.EventSetWait);
  if (missing == nullptr) return nvml;
  return Fail(UnsupportedError(fmt::format(
      "{} has no function {}: install a driver of release 450 or newer", library, missing)));
}

}  // namespace holdfast::agent
