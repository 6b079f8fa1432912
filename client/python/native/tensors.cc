#include "client/python/native/tensors.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "client/python/native/errors.h"

namespace nb = nanobind;

namespace holdfast::python {

const uint64_t* TensorList::Keep(const nb::handle& numbers, size_t expected,
                                 const std::string& name) {
  if (numbers.is_none()) return nullptr;
  auto& kept = numbers_.emplace_back(nb::cast<std::vector<uint64_t>>(numbers));
  if (kept.size() != expected) {
    Raise(HOLDFAST_INVALID_ARGUMENT,
          "tensor '" + name + "': shape has " + std::to_string(expected) +
              " dimensions, global_shape or offset has " + std::to_string(kept.size()));
  }
  // A scalar needs a non-null pointer as well: the library reads NULL as "not given".
  if (kept.empty()) kept.reserve(1);
  return kept.data();
}

TensorList::TensorList(const nb::sequence& tensors) {
  tensors_.reserve(nb::len(tensors));
  for (nb::handle given : tensors) {
    const std::string& name = names_.emplace_back(nb::cast<std::string>(given.attr("name")));
    if (name.find('\0') != std::string::npos) {
      Raise(HOLDFAST_INVALID_ARGUMENT,
            "tensor '" + name.substr(0, name.find('\0')) + "…': a name cannot have zero bytes");
    }
    nb::object shape = given.attr("shape");
    size_t dimensions = nb::len(shape);
    holdfast_tensor raw{};
    raw.name = name.c_str();
    raw.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(given.attr("pointer")));
    raw.shape = Keep(shape, dimensions, name);
    raw.dimensions = static_cast<uint32_t>(dimensions);
    raw.dtype = nb::cast<uint32_t>(given.attr("dtype"));
    raw.device = nb::cast<uint32_t>(given.attr("device"));
    raw.device_index = nb::cast<int32_t>(given.attr("device_index"));
    raw.global_shape = Keep(given.attr("global_shape"), dimensions, name);
    raw.offset = Keep(given.attr("offset"), dimensions, name);
    tensors_.push_back(raw);
  }
}

}  // namespace holdfast::python
