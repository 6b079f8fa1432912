#include <dlfcn.h>

#include <set>
#include <string>

#include "client/core/copier.h"

namespace holdfast::client {
namespace {
/// Returns the directory of the library that contains this code, with a slash; empty when unknown.
std::string OwnDirectory() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&OwnDirectory), &info) == 0 ||
      info.dli_fname == nullptr) {
    return "";
  }
  std::string path = info.dli_fname;
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}
}  // namespace

Result<std::unique_ptr<DeviceCopier>> DeviceCopier::Load(std::span<const TensorMemory> memory,
                                                         const std::string& backend) {
  std::set<int32_t> devices;
  for (const TensorMemory& tensor : memory) {
    if (tensor.device) devices.insert(tensor.device_index);
  }
  const std::string name = "libholdfast-" + backend + ".so";
  const std::string path = OwnDirectory() + name;
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return Fail(UnsupportedError(
        "a tensor is on a device, but the device backend " + backend + " could not be loaded (" +
        std::string(why == nullptr ? path : why) + "): install " + name +
        " next to libholdfast.so, and the driver of the device, or choose another device_backend"));
  }
  // Never closed: threads and exit handlers of the driver may outlive any client.
  auto table_of =
      reinterpret_cast<holdfast_device_copier_fn>(::dlsym(library, HOLDFAST_DEVICE_COPIER_SYMBOL));
  const holdfast_device_copier* table = table_of == nullptr ? nullptr : table_of();
  if (table == nullptr || table->abi != HOLDFAST_DEVICE_COPIER_ABI ||
      table->struct_size < sizeof(holdfast_device_copier)) {
    return Fail(UnsupportedError(path + " is of another release of Holdfast: install the one " +
                                 "that came with this libholdfast.so"));
  }
  std::vector<int32_t> indices(devices.begin(), devices.end());
  holdfast_device_context* context = nullptr;
  char text[512] = {};
  int32_t code = table->open(indices.data(), indices.size(), &context, text, sizeof text);
  if (code != 0) return Fail(Status(ErrorFromNumber(static_cast<uint32_t>(code)), text));
  return std::make_unique<DeviceCopier>(table, context);
}

DeviceCopier::~DeviceCopier() { table_->close(context_); }

Status DeviceCopier::Pin(std::byte* memory, uint64_t bytes) {
  char text[512] = {};
  int32_t code = table_->pin(context_, memory, bytes, text, sizeof text);
  return code == 0 ? Status::Ok() : Status(ErrorFromNumber(static_cast<uint32_t>(code)), text);
}

}  // namespace holdfast::client
