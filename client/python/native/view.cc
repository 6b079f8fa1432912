// A committed version seen whole: what all ranks saved, whatever their number.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "client/python/native/client.h"
#include "client/python/native/errors.h"
#include "client/python/native/tensors.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace holdfast::python {
namespace {
nb::tuple Numbers(const uint64_t* numbers, uint32_t count) {
  nb::list list;
  for (uint32_t i = 0; i < count; ++i) list.append(numbers[i]);
  return nb::tuple(list);
}

/// Closed before its client is: it holds it.
class View {
 public:
  View(nb::handle_t<Client> client, std::optional<std::pair<uint64_t, uint64_t>> wanted,
       uint32_t timeout_ms)
      : client_(nb::borrow(client)) {
    holdfast_client* raw = nb::cast<Client&>(client).get();
    holdfast_version version{};
    if (wanted) version = {wanted->first, wanted->second};
    holdfast_error error{};
    holdfast_code code;
    {
      nb::gil_scoped_release unlocked;
      const Interruptible interruptible;
      code = holdfast_view_open(raw, wanted ? &version : nullptr, timeout_ms, &view_, &error);
    }
    Check(code, error);
  }
  ~View() { Close(); }
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  const holdfast_view_info& info() const {
    if (view_ == nullptr) Raise(HOLDFAST_FAILED_PRECONDITION, "the view is closed");
    return *holdfast_view_get(view_);
  }

  nb::list Pieces() const {
    nb::list pieces;
    for (size_t i = 0; i < info().piece_count; ++i) {
      const holdfast_piece& piece = info().pieces[i];
      pieces.append(nb::make_tuple(
          piece.name, piece.rank, piece.dtype, Numbers(piece.shape, piece.dimensions),
          Numbers(piece.global_shape, piece.dimensions), Numbers(piece.offset, piece.dimensions)));
    }
    return pieces;
  }

  nb::list Extras() const {
    nb::list extras;
    for (size_t i = 0; i < info().extra_count; ++i) {
      const holdfast_rank_extra& extra = info().extras[i];
      extras.append(
          nb::make_tuple(extra.rank, extra.extra.name,
                         nb::bytes(static_cast<const char*>(extra.extra.data), extra.extra.bytes)));
    }
    return extras;
  }

  void Load(const nb::sequence& tensors, uint32_t timeout_ms) {
    info();
    TensorList list(tensors);
    holdfast_error error{};
    holdfast_code code;
    {
      nb::gil_scoped_release unlocked;
      const Interruptible interruptible;
      code = holdfast_view_load(view_, list.data(), list.size(), timeout_ms, &error);
    }
    Check(code, error);
  }

  void Close() {
    if (view_ == nullptr) return;
    holdfast_view* view = std::exchange(view_, nullptr);
    // The client that is closed already has freed what is beneath a view.
    if (!nb::cast<Client&>(client_).closed()) {
      nb::gil_scoped_release unlocked;
      holdfast_view_close(view);
    }
  }

 private:
  nb::object client_;
  holdfast_view* view_ = nullptr;
};
}  // namespace

void BindView(nb::module_& module) {
  nb::class_<View>(module, "View")
      .def(nb::init<nb::handle_t<Client>, std::optional<std::pair<uint64_t, uint64_t>>, uint32_t>(),
           "client"_a, "wanted"_a.none(), "timeout_ms"_a)
      .def_prop_ro("version",
                   [](const View& view) {
                     const holdfast_version& version = view.info().version;
                     return std::pair(version.incarnation, version.step);
                   })
      .def_prop_ro("tier", [](const View& view) { return view.info().tier; })
      .def_prop_ro("world", [](const View& view) { return view.info().world; })
      .def("pieces", &View::Pieces)
      .def("extras", &View::Extras)
      .def("load", &View::Load, "tensors"_a, "timeout_ms"_a)
      .def("close", &View::Close);
}

}  // namespace holdfast::python
