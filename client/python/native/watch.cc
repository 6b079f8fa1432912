#include "watch.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace holdfast::python {
namespace {
/// What is looked at is held: an address that is compared is never that of a newer object.
class Watch {
 public:
  /// `dictionary` has as many entries as now.
  void AddSize(nb::dict dictionary) {
    size_t size = nb::len(dictionary);
    sizes_.push_back({std::move(dictionary), size});
  }

  /// dictionary[key] is the object that it is now.
  void AddEntry(nb::dict dictionary, nb::object key) {
    nb::object value = dictionary[key];
    entries_.push_back({std::move(dictionary), std::move(key), std::move(value)});
  }

  /// tensor.data_ptr() is what it is now.
  void AddAddress(nb::object tensor) {
    nb::object bound = tensor.attr("data_ptr");
    uintptr_t address = nb::cast<uintptr_t>(bound());
    addresses_.push_back({std::move(bound), address});
  }

  bool Holds() const {
    for (const auto& [dictionary, size] : sizes_) {
      if (static_cast<size_t>(PyDict_GET_SIZE(dictionary.ptr())) != size) return false;
    }
    for (const Entry& entry : entries_) {
      PyObject* value = PyDict_GetItemWithError(entry.dictionary.ptr(), entry.key.ptr());
      if (value == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
      if (value != entry.value.ptr()) return false;
    }
    for (const auto& [data_ptr, address] : addresses_) {
      if (nb::cast<uintptr_t>(data_ptr()) != address) return false;
    }
    return true;
  }

 private:
  struct Entry {
    nb::dict dictionary;
    nb::object key, value;
  };
  std::vector<std::pair<nb::dict, size_t>> sizes_;
  std::vector<Entry> entries_;
  std::vector<std::pair<nb::object, uintptr_t>> addresses_;
};
}  // namespace

void BindWatch(nb::module_& module) {
  nb::class_<Watch>(module, "Watch")
      .def(nb::init<>())
      .def("add_size", &Watch::AddSize, "dictionary"_a)
      .def("add_entry", &Watch::AddEntry, "dictionary"_a, "key"_a)
      .def("add_address", &Watch::AddAddress, "tensor"_a)
      .def("holds", &Watch::Holds);
}

}  // namespace holdfast::python
