#include "client/python/native/addresses.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace nb = nanobind;

namespace holdfast::python {
namespace {
constexpr size_t kAhead = 4;
constexpr size_t kLineBytes = 64;
constexpr size_t kLines = 4;

/// Takes what data_ptr() returned.
uintptr_t AddressFrom(nb::object number) {
  if (!number.is_valid()) nb::raise_python_error();
  return nb::cast<uintptr_t>(number);
}
}  // namespace

void Addresses::Add(nb::object tensor) {
  nb::object bound = tensor.attr("data_ptr");
  const uintptr_t address = AddressFrom(bound());
  const bool plain = PyCFunction_Check(bound.ptr()) &&
                     PyCFunction_GET_FLAGS(bound.ptr()) == METH_NOARGS &&
                     PyCFunction_GET_SELF(bound.ptr()) == tensor.ptr() &&
                     Py_TYPE(tensor.ptr())->tp_basicsize >= 2 * Py_ssize_t{sizeof(PyObject)};
  if (plain) {
    PyCFunction data_ptr = PyCFunction_GET_FUNCTION(bound.ptr());
    places_.push_back({std::move(tensor), data_ptr, address});
  } else {
    odd_places_.push_back({std::move(bound), address});
  }
}

bool Addresses::Hold() const {
  for (size_t i = 0; i < places_.size(); ++i) {
    if (i + 2 * kAhead < places_.size()) {
      __builtin_prefetch(places_[i + 2 * kAhead].tensor.ptr());
      // The word behind an object's head is most likely the address of what torch keeps of the
      // tensor. If it is another there is nothing gained: a prefetch cannot fault.
      const char* behind = nullptr;
      std::memcpy(&behind, places_[i + kAhead].tensor.ptr() + 1, sizeof behind);
      for (size_t line = 0; line < kLines; ++line) __builtin_prefetch(behind + line * kLineBytes);
    }
    const Place& place = places_[i];
    if (AddressFrom(nb::steal(place.data_ptr(place.tensor.ptr(), nullptr))) != place.address) {
      return false;
    }
  }
  return std::all_of(odd_places_.begin(), odd_places_.end(), [](const OddPlace& place) {
    return AddressFrom(place.data_ptr()) == place.address;
  });
}

}  // namespace holdfast::python
