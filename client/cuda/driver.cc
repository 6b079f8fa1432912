#include "client/cuda/driver.h"

#include <dlfcn.h>

namespace holdfast::cuda {
namespace {

struct Loaded {
  Driver driver;
  bool usable = false;
  std::string why;
};

Loaded LoadOnce() {
  Loaded loaded;
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    loaded.why = "no NVIDIA driver on this machine (libcuda.so.1 cannot be loaded)";
    return loaded;
  }
#define X(name, symbol, type)                                                                 \
  loaded.driver.name = reinterpret_cast<std::add_pointer_t<type>>(::dlsym(library, #symbol)); \
  if (loaded.driver.name == nullptr) {                                                        \
    loaded.why = "the NVIDIA driver is too old: it lacks " #symbol;                           \
    return loaded;                                                                            \
  }
  HOLDFAST_DRIVER_FUNCTIONS(X)
#undef X
#define X(name, symbol, type) \
  loaded.driver.name = reinterpret_cast<std::add_pointer_t<type>>(::dlsym(library, #symbol));
  HOLDFAST_KERNEL_FUNCTIONS(X)
#undef X
  loaded.driver.GetAddressRange = reinterpret_cast<decltype(loaded.driver.GetAddressRange)>(
      ::dlsym(library, "cuMemGetAddressRange_v2"));
  loaded.driver.CopyBatch = reinterpret_cast<decltype(loaded.driver.CopyBatch)>(
      ::dlsym(library, "cuMemcpyBatchAsync_v2"));
  CUresult result = loaded.driver.Init(0);
  if (result != CUDA_SUCCESS) {
    loaded.why = loaded.driver.Text("cuInit", result);
    return loaded;
  }
  loaded.usable = true;
  return loaded;
}

}  // namespace

const Driver* Driver::Load(std::string* why) {
  static const Loaded loaded = LoadOnce();
  if (loaded.usable) return &loaded.driver;
  *why = loaded.why;
  return nullptr;
}

std::string Driver::Text(const char* what, CUresult result) const {
  if (result == CUDA_SUCCESS) return "";
  const char* text = nullptr;
  if (GetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
  return std::string(what) + ": " + text + " (CUDA error " +
         std::to_string(static_cast<int>(result)) + ")";
}

}  // namespace holdfast::cuda
