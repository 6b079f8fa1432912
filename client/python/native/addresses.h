#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

namespace holdfast::python {

/// Says whether tensors are still where they were, in the shape and order that they had.
///
/// Every save asks, for all tensors. torch's stable C interface, where this torch has it, answers
/// in a sixth of the time of the method data_ptr(), which makes a number each time.
class Addresses {
 public:
  /// The tensor is held, so that its address is never that of a newer object.
  void Add(nanobind::object tensor);
  bool Hold() const;

 private:
  struct Place {
    void* handle = nullptr;  // of the C interface: the tensor that the object has in it
    void* address = nullptr;
  };
  /// Of tensors that the C interface does not know: what data_ptr() returned.
  struct OddPlace {
    nanobind::object data_ptr;
    uintptr_t address = 0;
  };

  std::vector<nanobind::object> held_;
  std::vector<Place> places_;
  std::vector<int64_t> extents_;  // of each in turn: how many dimensions, sizes, strides
  std::vector<OddPlace> odd_places_;
};

}  // namespace holdfast::python
