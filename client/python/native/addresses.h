#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

namespace holdfast::python {

/// Says whether tensors are still where they were, by their data_ptr().
///
/// The C function behind it is called itself, without the interpreter's way to it. (DLPack's table
/// of C functions, which torch publishes from 2.10 on, says more and takes 80 ns a tensor, since
/// torch counts references there; this takes 48.)
class Addresses {
 public:
  /// The tensor is held, so that its address is never that of a newer object.
  void Add(nanobind::object tensor);
  bool Hold() const;

 private:
  struct Place {
    nanobind::object tensor;
    PyCFunction data_ptr = nullptr;
    uintptr_t address = 0;
  };
  /// Of tensors whose data_ptr() is no plain C function of none but themselves.
  struct OddPlace {
    nanobind::object data_ptr;
    uintptr_t address = 0;
  };

  std::vector<Place> places_;
  std::vector<OddPlace> odd_places_;
};

}  // namespace holdfast::python
