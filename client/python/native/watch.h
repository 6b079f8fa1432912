#pragma once

#include <nanobind/nanobind.h>

namespace holdfast::python {

/// Says cheaply whether a state is still made of the same tensors at the same addresses: some
/// nanoseconds each, where looking from Python would cost most of a millisecond for ten thousand.
void BindWatch(nanobind::module_& module);

}  // namespace holdfast::python
