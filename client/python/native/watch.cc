#include "client/python/native/watch.h"

#include <utility>
#include <vector>

#include "client/python/native/addresses.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace holdfast::python {
namespace {
/// A set of conditions on Python objects. Keeps references to the objects that it compares, so that
/// no newer object can get their addresses.
class Watch {
 public:
  /// Condition: `dictionary` has the same objects as now, in the same order.
  void AddValues(nb::dict dictionary) { AddContents(std::move(dictionary), {}); }

  /// Condition: `dictionary` has as many entries as now, and the same objects of type `tensor`.
  void AddTensors(nb::dict dictionary, nb::handle tensor) {
    AddContents(std::move(dictionary), tensor);
  }

  /// Condition: `tree`, of dictionaries, lists and tuples, has the same objects of type `tensor` at
  /// the same places as now. Other values may change, but not their places.
  void AddTree(nb::handle tree, nb::handle tensor) {
    if (!IsBranch(tree.ptr(), tensor)) return;
    Branch branch{nb::borrow(tree), nb::borrow(tensor), {}};
    EachOf(tree.ptr(), [&](PyObject* key, PyObject* value) {
      const bool watched = IsWatched(value, tensor);
      branch.items.push_back({nb::borrow(key), watched ? nb::borrow(value) : nb::object()});
      return true;
    });
    branches_.push_back(std::move(branch));
    // Iterates over a copy, since the recursion adds to branches_.
    const std::vector<Item> items = branches_.back().items;
    for (const Item& item : items) AddTree(item.value, tensor);
  }

  /// Condition: object.name is the same object as now.
  void AddAttribute(nb::object object, nb::str name) {
    nb::object value = object.attr(name);
    attributes_.push_back({std::move(object), std::move(name), std::move(value)});
  }

  /// Condition: dictionary[key] is the same object as now.
  void AddEntry(nb::dict dictionary, nb::object key) {
    nb::object value = dictionary[key];
    entries_.push_back({std::move(dictionary), std::move(key), std::move(value)});
  }

  /// Condition: the tensor has the same address, sizes and strides as now.
  void AddAddress(nb::object tensor) { addresses_.Add(std::move(tensor)); }

  /// Returns whether all conditions hold.
  bool Holds() const {
    for (const auto& [dictionary, values] : contents_) {
      if (!HasValues(dictionary, values)) return false;
    }
    for (const Branch& branch : branches_) {
      if (!HasItems(branch)) return false;
    }
    for (const Attribute& attribute : attributes_) {
      if (nb::getattr(attribute.object, attribute.name).ptr() != attribute.value.ptr())
        return false;
    }
    for (const Entry& entry : entries_) {
      PyObject* value = PyDict_GetItemWithError(entry.dictionary.ptr(), entry.key.ptr());
      if (value == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
      if (value != entry.value.ptr()) return false;
    }
    return addresses_.Hold();
  }

 private:
  struct Entry {
    nb::dict dictionary;
    nb::object key, value;
  };
  struct Attribute {
    nb::object object;
    nb::str name;
    nb::object value;
  };
  using Values = std::vector<nb::object>;  // an invalid object matches any value
  struct Item {
    nb::object key;    // invalid in a list or tuple
    nb::object value;  // invalid: neither a tensor nor a container of tensors
  };
  struct Branch {
    nb::object container, tensor;
    std::vector<Item> items;
  };

  /// A tuple without tensors is a value, which may change.
  static bool IsBranch(PyObject* object, nb::handle tensor) {
    if (object == nullptr) return false;
    if (PyDict_Check(object) || PyList_Check(object)) return true;
    if (!PyTuple_CheckExact(object)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_Size(object); ++i) {
      if (IsWatched(PyTuple_GetItem(object, i), tensor)) return true;
    }
    return false;
  }

  static bool IsWatched(PyObject* object, nb::handle tensor) {
    return IsBranch(object, tensor) ||
           PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(tensor.ptr()));
  }

  /// Calls `visit(key, value)` for all, until it returns false.
  template <typename Visit>
  static void EachOf(PyObject* container, const Visit& visit) {
    if (PyList_Check(container)) {
      for (Py_ssize_t i = 0; i < PyList_Size(container); ++i) {
        if (!visit(nullptr, PyList_GetItem(container, i))) return;
      }
      return;
    }
    if (PyTuple_Check(container)) {
      for (Py_ssize_t i = 0; i < PyTuple_Size(container); ++i) {
        if (!visit(nullptr, PyTuple_GetItem(container, i))) return;
      }
      return;
    }
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(container, &at, &key, &value) != 0;) {
      if (!visit(key, value)) return;
    }
  }

  static bool HasItems(const Branch& branch) {
    size_t same = 0;
    size_t seen = 0;
    EachOf(branch.container.ptr(), [&](PyObject* key, PyObject* value) {
      if (seen++ >= branch.items.size()) return false;
      const Item& item = branch.items[same];
      const bool holds =
          item.value.is_valid() ? item.value.ptr() == value : !IsWatched(value, branch.tensor);
      same += key == item.key.ptr() && holds ? 1 : 0;
      return same == seen;
    });
    return same == branch.items.size() && seen == same;
  }

  void AddContents(nb::dict dictionary, nb::handle type) {
    Values values;
    for (const auto& [key, value] : dictionary) {
      bool watched = !type.is_valid() || nb::isinstance(value, type);
      values.push_back(watched ? nb::borrow(value) : nb::object());
    }
    contents_.push_back({std::move(dictionary), std::move(values)});
  }

  static bool HasValues(const nb::dict& dictionary, const Values& values) {
    if (static_cast<size_t>(PyDict_Size(dictionary.ptr())) != values.size()) return false;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    Py_ssize_t at = 0;
    for (const nb::object& expected : values) {
      if (PyDict_Next(dictionary.ptr(), &at, &key, &value) == 0) return false;
      if (expected.is_valid() && expected.ptr() != value) return false;
    }
    return true;
  }

  std::vector<std::pair<nb::dict, Values>> contents_;
  std::vector<Branch> branches_;
  std::vector<Attribute> attributes_;
  std::vector<Entry> entries_;
  Addresses addresses_;
};
}  // namespace

void BindWatch(nb::module_& module) {
  nb::class_<Watch>(module, "Watch")
      .def(nb::init<>())
      .def("add_values", &Watch::AddValues, "dictionary"_a)
      .def("add_tensors", &Watch::AddTensors, "dictionary"_a, "type"_a)
      .def("add_tree", &Watch::AddTree, "tree"_a, "tensor"_a)
      .def("add_attribute", &Watch::AddAttribute, "object"_a, "name"_a)
      .def("add_entry", &Watch::AddEntry, "dictionary"_a, "key"_a)
      .def("add_address", &Watch::AddAddress, "tensor"_a)
      .def("holds", &Watch::Holds);
}

}  // namespace holdfast::python
