#pragma once

#include <holdfast/holdfast.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace holdfast::python {

/// Descriptions of tensors as the library takes them, with the memory of their names and numbers.
/// The bytes stay the caller's.
class TensorList {
 public:
  /// Of holdfast.Tensor objects (see holdfast/tensors.py for their fields).
  explicit TensorList(const nanobind::sequence& tensors);

  const holdfast_tensor* data() const { return tensors_.data(); }
  size_t size() const { return tensors_.size(); }

 private:
  const uint64_t* Keep(const nanobind::handle& numbers, size_t expected, const std::string& name);

  // Deques: what was taken the address of never moves.
  std::deque<std::string> names_;
  std::deque<std::vector<uint64_t>> numbers_;
  std::vector<holdfast_tensor> tensors_;
};

}  // namespace holdfast::python
