// Binds the records of steps and collectives for the fault detector. They pass no client, so the
// library uses this process's first client, and the records also work before there is one.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "client/python/native/client.h"
#include "client/python/native/errors.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace holdfast::python {
namespace {
uint64_t Begin(uint64_t communicator, uint32_t kind, uint64_t bytes, uint32_t dtype,
               std::optional<uint32_t> peer, std::optional<uint64_t> sequence) {
  holdfast_collective collective{};
  collective.struct_size = sizeof collective;
  collective.communicator = communicator;
  collective.kind = kind;
  collective.bytes = bytes;
  collective.dtype = dtype;
  collective.peer = peer.value_or(HOLDFAST_NO_PEER);
  collective.numbered = sequence ? 1 : 0;
  collective.sequence = sequence.value_or(0);
  return holdfast_collective_begin(nullptr, &collective);
}

void Describe(uint64_t id, uint32_t size, uint32_t index,
              const std::optional<std::vector<uint32_t>>& members, uint32_t role) {
  if (members && members->size() != size) {
    Raise(HOLDFAST_INVALID_ARGUMENT, "the communicator has size " + std::to_string(size) +
                                         ", but " + std::to_string(members->size()) +
                                         " members are listed");
  }
  holdfast_communicator communicator{};
  communicator.struct_size = sizeof communicator;
  communicator.id = id;
  communicator.size = size;
  communicator.index = index;
  communicator.members = members ? members->data() : nullptr;
  communicator.role = role;
  holdfast_error error{};
  Check(holdfast_communicator_describe(nullptr, &communicator, &error), error);
}
}  // namespace

void BindRecords(nb::module_& module) {
  module.def(
      "step", [](uint64_t step) { holdfast_step(nullptr, step); }, "step"_a);
  module.def("communicator_describe", &Describe, "id"_a, "size"_a, "index"_a, "members"_a.none(),
             "role"_a);
  module.def(
      "communicator_forget", [](uint64_t id) { holdfast_communicator_forget(nullptr, id); },
      "id"_a);
  module.def("collective_begin", &Begin, "communicator"_a, "kind"_a, "bytes"_a, "dtype"_a,
             "peer"_a.none(), "sequence"_a.none());
  module.def(
      "collective_end", [](uint64_t operation) { holdfast_collective_end(nullptr, operation); },
      "operation"_a);
  module.def(
      "collective_abandon",
      [](uint64_t operation) { holdfast_collective_abandon(nullptr, operation); }, "operation"_a);
}

}  // namespace holdfast::python
