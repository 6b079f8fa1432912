#pragma once

#include <nanobind/nanobind.h>

namespace holdfast::python {

/// Binds `Watch`, which checks whether a state still has the same tensors at the same addresses. A
/// check takes a few nanoseconds per tensor. In Python, ten thousand tensors would take most of a
/// millisecond.
void BindWatch(nanobind::module_& module);

}  // namespace holdfast::python
