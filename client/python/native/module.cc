// The native module of the package `holdfast`: a plain binding of holdfast.h. The Python files of
// the package have the public names, defaults and documentation.

#include <holdfast/holdfast.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "client/python/native/client.h"
#include "client/python/native/watch.h"

NB_MODULE(_native, module) {
  // Objects that live until the interpreter ends are not leaks.
  nanobind::set_leak_warnings(false);
  module.def("version_string", [] { return std::string(holdfast_version_string()); });
  module.def("api_version", [] { return holdfast_api_version(); });
  module.def("code_name", [](int code) { return std::string(holdfast_code_name(code)); });
  holdfast::python::BindClient(module);
  holdfast::python::BindRecords(module);
  holdfast::python::BindReader(module);
  holdfast::python::BindWatch(module);
}
