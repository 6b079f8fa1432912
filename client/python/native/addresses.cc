#include "client/python/native/addresses.h"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

namespace nb = nanobind;

namespace holdfast::python {
namespace {
constexpr size_t kAhead = 8;
constexpr size_t kLineBytes = 64;
/// The bytes of torch's objects that the functions of its C interface read.
constexpr size_t kTensorBytes = 192;
constexpr size_t kStorageBytes = 96;

/// The functions used of torch's C interface, which is stable across versions
/// (torch/csrc/inductor/aoti_torch/c/shim.h). All return 0 on success.
struct TorchC {
  int32_t (*get_data_ptr)(void* handle, void** address) = nullptr;
  int32_t (*get_dim)(void* handle, int64_t* dimensions) = nullptr;
  int32_t (*get_sizes)(void* handle, int64_t** sizes) = nullptr;
  int32_t (*get_strides)(void* handle, int64_t** strides) = nullptr;
  int32_t (*delete_tensor)(void* handle) = nullptr;
  PyObject* new_handle = nullptr;  // tensor → capsule of a handle; never released

  bool complete() const {
    return get_data_ptr != nullptr && get_dim != nullptr && get_sizes != nullptr &&
           get_strides != nullptr && delete_tensor != nullptr && new_handle != nullptr;
  }

  static const TorchC& Get() {
    static const TorchC found = Find();
    return found;
  }

 private:
  static TorchC Find() {
    TorchC c;
    void* library = ::dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return c;
    const auto find = [&]<typename Function>(Function** function, const char* name) {
      *function = reinterpret_cast<Function*>(::dlsym(library, name));
    };
    find(&c.get_data_ptr, "aoti_torch_get_data_ptr");
    find(&c.get_dim, "aoti_torch_get_dim");
    find(&c.get_sizes, "aoti_torch_get_sizes");
    find(&c.get_strides, "aoti_torch_get_strides");
    find(&c.delete_tensor, "aoti_torch_delete_tensor_object");
    nb::object module = nb::module_::import_("torch._C");
    module = nb::getattr(module, "_aoti", nb::none());
    nb::object found = nb::getattr(module, "unsafe_alloc_void_ptr_from_tensor", nb::object());
    c.new_handle = found.release().ptr();
    return c;
  }
};

/// Reads the cache lines of an object ahead of their use. The address may be wrong.
void PrefetchObject(const void* object, size_t bytes) {
  const char* const begin = static_cast<const char*>(object);
  for (size_t at = 0; at < bytes; at += kLineBytes) __builtin_prefetch(begin + at);
  __builtin_prefetch(begin + bytes - 1);
}

/// Returns the address of torch's object for the memory of a tensor, nullptr if unknown.
const void* StorageOf(const nb::object& tensor) {
  PyObject* storage = PyObject_CallMethod(tensor.ptr(), "untyped_storage", nullptr);
  if (storage == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  const nb::object number = nb::getattr(nb::steal(storage), "_cdata", nb::none());
  uintptr_t address = 0;
  return nb::try_cast(number, address) ? reinterpret_cast<const void*>(address) : nullptr;
}

/// Converts the result of data_ptr().
uintptr_t AddressFrom(const nb::object& number) { return nb::cast<uintptr_t>(number); }

/// Returns the place in the Python object that points to its tensor. The C interface accepts this
/// place as a handle. nullptr: not found. A new handle would work as well, but it counts as a
/// reference to the tensor, and torch.utils.swap_tensors fails if there is another reference.
void* HandleWithin(const TorchC& c, const nb::object& tensor) {
  if (!c.complete()) return nullptr;
  PyObject* capsule = PyObject_CallFunctionObjArgs(c.new_handle, tensor.ptr(), nullptr);
  if (capsule == nullptr) {
    PyErr_Clear();  // not a tensor
    return nullptr;
  }
  const nb::object owner = nb::steal(capsule);
  void* made = PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule));
  if (made == nullptr) nb::raise_python_error();
  // The handle and the object both contain one pointer to the same tensor.
  const void* const wanted = *static_cast<void**>(made);
  c.delete_tensor(made);
  auto* words = reinterpret_cast<void**>(tensor.ptr());
  const nb::object bytes =
      nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr()))).attr("__basicsize__");
  const size_t count = nb::cast<size_t>(bytes) / sizeof(void*);
  void** const begin = words + sizeof(PyObject) / sizeof(void*);
  void** const found = std::find(begin, std::max(begin, words + count), wanted);
  return found < words + count ? found : nullptr;
}

}  // namespace

void Addresses::Add(nb::object tensor) {
  const TorchC& c = TorchC::Get();
  nb::object data_ptr = tensor.attr("data_ptr");
  const uintptr_t address = AddressFrom(data_ptr());
  Place place{HandleWithin(c, tensor), nullptr, nullptr, nullptr};
  int64_t dimensions = 0;
  int64_t* sizes = nullptr;
  int64_t* strides = nullptr;
  const bool known = place.handle != nullptr && c.get_data_ptr(place.handle, &place.address) == 0 &&
                     reinterpret_cast<uintptr_t>(place.address) == address &&
                     c.get_dim(place.handle, &dimensions) == 0 &&
                     c.get_sizes(place.handle, &sizes) == 0 &&
                     c.get_strides(place.handle, &strides) == 0;
  if (!known) {
    odd_places_.push_back({std::move(data_ptr), address});
    return;
  }
  place.tensor = *static_cast<void**>(place.handle);
  place.storage = StorageOf(tensor);
  held_.push_back(std::move(tensor));
  places_.push_back(place);
  extents_.push_back(dimensions);
  extents_.insert(extents_.end(), sizes, sizes + dimensions);
  extents_.insert(extents_.end(), strides, strides + dimensions);
}

bool Addresses::Hold() const {
  const TorchC& c = TorchC::Get();
  const int64_t* extents = extents_.data();
  for (size_t i = 0; i < places_.size(); ++i) {
    // The training step has evicted the tensors from the CPU caches: prefetch the next ones.
    if (i + kAhead < places_.size()) {
      const Place& next = places_[i + kAhead];
      __builtin_prefetch(next.handle);
      PrefetchObject(next.tensor, kTensorBytes);
      PrefetchObject(next.storage, kStorageBytes);
    }
    void* address = nullptr;
    int64_t dimensions = 0;
    int64_t* sizes = nullptr;
    int64_t* strides = nullptr;
    void* const handle = places_[i].handle;
    const int64_t* const before = extents + 1;
    const bool same = c.get_data_ptr(handle, &address) == 0 && address == places_[i].address &&
                      c.get_dim(handle, &dimensions) == 0 && dimensions == *extents &&
                      c.get_sizes(handle, &sizes) == 0 &&
                      std::equal(sizes, sizes + dimensions, before) &&
                      c.get_strides(handle, &strides) == 0 &&
                      std::equal(strides, strides + dimensions, before + dimensions);
    if (!same) return false;
    extents = before + 2 * dimensions;
  }
  return std::all_of(odd_places_.begin(), odd_places_.end(), [](const OddPlace& place) {
    return AddressFrom(place.data_ptr()) == place.address;
  });
}

}  // namespace holdfast::python
