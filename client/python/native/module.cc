// The native part of the package `holdfast`: holdfast.h for Python, and nothing else. Names,
// defaults and explanations for users are in the Python files around it.

#include <holdfast/holdfast.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "client/python/native/client.h"
#include "client/python/native/watch.h"

NB_MODULE(_native, module) {
  // Objects that live until the interpreter ends are not leaks to complain of.
  nanobind::set_leak_warnings(false);
  module.def("version_string", [] { return std::string(holdfast_version_string()); });
  module.def("api_version", [] { return holdfast_api_version(); });
  module.def("code_name", [](int code) { return std::string(holdfast_code_name(code)); });
  holdfast::python::BindClient(module);
  holdfast::python::BindRecords(module);
  holdfast::python::BindView(module);
  holdfast::python::BindWatch(module);
}
