// Reads a committed version: the shards of all ranks that saved it.

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

/// Wraps a holdfast_reader. Keeps a reference to its client, so the client is destroyed later.
class VersionReader {
 public:
  VersionReader(nb::handle_t<Client> client, std::optional<std::pair<uint64_t, uint64_t>> wanted,
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
      code = holdfast_reader_open(raw, wanted ? &version : nullptr, timeout_ms, &reader_, &error);
    }
    Check(code, error);
  }
  ~VersionReader() { Close(); }
  VersionReader(const VersionReader&) = delete;
  VersionReader& operator=(const VersionReader&) = delete;

  /// The version, and what this rank's own shard contains.
  const holdfast_reader_info& own() const {
    if (reader_ == nullptr) Raise(HOLDFAST_FAILED_PRECONDITION, "the version reader is closed");
    return *holdfast_reader_own(reader_);
  }

  /// What the shards of all ranks contain.
  const holdfast_reader_info& all(uint32_t timeout_ms) const {
    own();
    holdfast_error error{};
    holdfast_code code;
    {
      nb::gil_scoped_release unlocked;
      const Interruptible interruptible;
      code = holdfast_reader_list(reader_, timeout_ms, &error);
    }
    Check(code, error);
    return *holdfast_reader_get(reader_);
  }

  static nb::list Pieces(const holdfast_reader_info& info) {
    nb::list pieces;
    for (size_t i = 0; i < info.piece_count; ++i) {
      const holdfast_piece& piece = info.pieces[i];
      pieces.append(nb::make_tuple(
          piece.name, piece.rank, piece.dtype, Numbers(piece.shape, piece.dimensions),
          Numbers(piece.global_shape, piece.dimensions), Numbers(piece.offset, piece.dimensions)));
    }
    return pieces;
  }

  static nb::list Extras(const holdfast_reader_info& info) {
    nb::list extras;
    for (size_t i = 0; i < info.extra_count; ++i) {
      const holdfast_rank_extra& extra = info.extras[i];
      extras.append(
          nb::make_tuple(extra.rank, extra.extra.name,
                         nb::bytes(static_cast<const char*>(extra.extra.data), extra.extra.bytes)));
    }
    return extras;
  }

  /// Each tensor once.
  nb::list Tensors(uint32_t timeout_ms) const {
    own();
    const holdfast_reader_info* info = nullptr;
    holdfast_error error{};
    holdfast_code code;
    {
      nb::gil_scoped_release unlocked;
      const Interruptible interruptible;
      code = holdfast_reader_tensors(reader_, timeout_ms, &info, &error);
    }
    Check(code, error);
    return Pieces(*info);
  }

  std::optional<nb::bytes> Extra(uint32_t rank, const std::string& name,
                                 uint32_t timeout_ms) const {
    own();
    holdfast_extra extra{};
    holdfast_error error{};
    holdfast_code code;
    {
      nb::gil_scoped_release unlocked;
      const Interruptible interruptible;
      code = holdfast_reader_extra(reader_, rank, name.c_str(), timeout_ms, &extra, &error);
    }
    if (code == HOLDFAST_NOT_FOUND) return std::nullopt;
    Check(code, error);
    return nb::bytes(static_cast<const char*>(extra.data), extra.bytes);
  }

  void Load(const nb::sequence& tensors, uint32_t timeout_ms) {
    own();
    TensorList list(tensors);
    holdfast_error error{};
    holdfast_code code;
    {
      nb::gil_scoped_release unlocked;
      const Interruptible interruptible;
      code = holdfast_reader_load(reader_, list.data(), list.size(), timeout_ms, &error);
    }
    Check(code, error);
  }

  void Close() {
    if (reader_ == nullptr) return;
    holdfast_reader* reader = std::exchange(reader_, nullptr);
    // A closed client has already freed the memory of its readers.
    if (!nb::cast<Client&>(client_).closed()) {
      nb::gil_scoped_release unlocked;
      holdfast_reader_close(reader);
    }
  }

 private:
  nb::object client_;
  holdfast_reader* reader_ = nullptr;
};
}  // namespace

void BindReader(nb::module_& module) {
  nb::class_<VersionReader>(module, "VersionReader")
      .def(nb::init<nb::handle_t<Client>, std::optional<std::pair<uint64_t, uint64_t>>, uint32_t>(),
           "client"_a, "wanted"_a.none(), "timeout_ms"_a)
      .def_prop_ro("version",
                   [](const VersionReader& reader) {
                     const holdfast_version& version = reader.own().version;
                     return std::pair(version.incarnation, version.step);
                   })
      .def_prop_ro("tier", [](const VersionReader& reader) { return reader.own().tier; })
      .def_prop_ro("world", [](const VersionReader& reader) { return reader.own().world; })
      .def("own_pieces",
           [](const VersionReader& reader) { return VersionReader::Pieces(reader.own()); })
      .def("own_extras",
           [](const VersionReader& reader) { return VersionReader::Extras(reader.own()); })
      .def(
          "pieces",
          [](const VersionReader& reader, uint32_t timeout_ms) {
            return VersionReader::Pieces(reader.all(timeout_ms));
          },
          "timeout_ms"_a)
      .def(
          "extras",
          [](const VersionReader& reader, uint32_t timeout_ms) {
            return VersionReader::Extras(reader.all(timeout_ms));
          },
          "timeout_ms"_a)
      .def("tensors", &VersionReader::Tensors, "timeout_ms"_a)
      .def("extra", &VersionReader::Extra, "rank"_a, "name"_a, "timeout_ms"_a)
      .def("load", &VersionReader::Load, "tensors"_a, "timeout_ms"_a)
      .def("close", &VersionReader::Close);
}

}  // namespace holdfast::python
