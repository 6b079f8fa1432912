#include "client/python/native/errors.h"

namespace nb = nanobind;

namespace holdfast::python {
namespace {
/// The exception classes are defined in Python: holdfast.errors.make makes the exception.
void RaiseMade(holdfast_code code, const char* message, bool asynchronous, uint64_t step) {
  nb::object made =
      nb::module_::import_("holdfast.errors")
          .attr("make")(static_cast<int>(code),
                        nb::steal(PyUnicode_DecodeUTF8(
                            message, static_cast<Py_ssize_t>(strlen(message)), "replace")),
                        asynchronous, step);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  nb::raise_python_error();
}
}  // namespace

Interruptible::Interruptible() {
  holdfast_set_stop_check(
      [](void*) {
        nb::gil_scoped_acquire locked;
        return PyErr_CheckSignals();  // the exception stays set until Check()
      },
      nullptr);
}

Interruptible::~Interruptible() { holdfast_set_stop_check(nullptr, nullptr); }

void Check(holdfast_code code, const holdfast_error& error) {
  if (PyErr_Occurred() != nullptr) nb::raise_python_error();
  if (code != HOLDFAST_OK) RaiseMade(code, error.message, error.asynchronous != 0, error.step);
}

void Raise(holdfast_code code, const std::string& message) {
  RaiseMade(code, message.c_str(), false, 0);
}

}  // namespace holdfast::python
