#pragma once

#include <holdfast/holdfast.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace holdfast::python {

/// Tensor descriptions in the form of the library. Owns their names and numbers, not the tensors'
/// memory.
class TensorList {
 public:
  /// Converts holdfast.Tensor objects (see holdfast/tensors.py for their fields).
  explicit TensorList(const nanobind::sequence& tensors);

  const holdfast_tensor* data() const { return tensors_.data(); }
  size_t size() const { return tensors_.size(); }

 private:
  /// Copies a tuple of numbers. Returns nullptr for None.
  const uint64_t* Keep(const nanobind::handle& numbers, size_t expected, const std::string& name);

  // Deques, since the descriptions contain addresses of their elements.
  std::deque<std::string> names_;
  std::deque<std::vector<uint64_t>> numbers_;
  std::vector<holdfast_tensor> tensors_;
};

}  // namespace holdfast::python
