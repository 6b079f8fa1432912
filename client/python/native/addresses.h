#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

namespace holdfast::python {

/// Checks whether tensors still have the addresses, sizes and strides that they had.
///
/// Every save checks all tensors. The check uses torch's stable C interface where it is available.
/// That takes a sixth of the time of the method data_ptr(), which makes a Python number at each
/// call.
class Addresses {
 public:
  /// Adds a tensor and keeps a reference, so that no newer object can get its address.
  void Add(nanobind::object tensor);
  /// Returns whether all tensors are unchanged.
  bool Hold() const;

 private:
  struct Place {
    void* handle = nullptr;  // the place in the Python object that points to the tensor
    void* address = nullptr;
    // Torch's objects. Only used to prefetch them, since torch may replace them.
    const void* tensor = nullptr;
    const void* storage = nullptr;
  };
  /// The result of data_ptr(), for tensors that the C interface does not support.
  struct OddPlace {
    nanobind::object data_ptr;
    uintptr_t address = 0;
  };

  std::vector<nanobind::object> held_;
  std::vector<Place> places_;
  std::vector<int64_t> extents_;  // for each tensor: number of dimensions, sizes, strides
  std::vector<OddPlace> odd_places_;
};

}  // namespace holdfast::python
