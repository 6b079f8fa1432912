#include "client/python/native/client.h"

namespace holdfast::python {

void BindView(nanobind::module_& /*module*/) {}

}  // namespace holdfast::python
