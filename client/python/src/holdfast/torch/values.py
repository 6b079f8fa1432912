"""Values that are not tensors, as JSON. Decoding restores the exact values and types and runs no code.

JSON has no tuples, no bytes, and only strings as keys. Such values are written as
{"$": kind, "v": …}.
"""

from __future__ import annotations

import base64
import collections
import json
import math
import pickle
from typing import Any, Callable

import torch

from ..errors import UnsupportedError

__all__ = ["UnsupportedValueError", "decode", "dtype_of", "dumps", "encode", "loads"]


class UnsupportedValueError(UnsupportedError, TypeError):
    """A value in the state can only be saved or loaded as a pickle, which is not allowed."""


#: Python may refuse to convert numbers of more than 640 digits to decimal text and back.
_INT_BITS_MAX = 2048
#: The factories of a defaultdict that are saved by name.
_FACTORIES = {kind.__name__: kind for kind in (bool, int, float, complex, str, list, tuple, set, dict)}


def _tagged(kind: str, value: Any) -> dict[str, Any]:
    return {"$": kind, "v": value}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _encode_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    # clone() also corrects the stride of a single element, which contiguous() keeps.
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().clone(
        memory_format=torch.contiguous_format)
    flat = dense.reshape(-1).view(torch.uint8)
    return {"$": "tensor", "v": _base64(flat.numpy().tobytes()), "shape": list(tensor.shape),
            "dtype": str(tensor.dtype)}


def _factory_of(value: dict) -> str | None:
    """The name of a defaultdict's factory. None: `value` has none, or one that has no name here."""
    factory = value.default_factory if type(value) is collections.defaultdict else None
    return next((name for name, kind in _FACTORIES.items() if kind is factory), None)


def _encode_mapping(value: dict, where: str, recurse: Callable[[Any, str], Any]) -> Any:
    kinds = {collections.OrderedDict: "OrderedDict", collections.Counter: "Counter"}
    kind, factory = kinds.get(type(value), "dict"), _factory_of(value)
    if kind == "dict" and factory is None and "$" not in value \
            and all(type(key) is str for key in value):
        return {key: recurse(item, f"{where}.{key}") for key, item in value.items()}
    pairs = _tagged(kind, [[recurse(key, f"{where}'s keys"), recurse(item, f"{where}.{key}")]
                           for key, item in value.items()])
    return pairs if factory is None else {**pairs, "factory": factory}


def _encode_numpy(value: Any) -> Any:
    numpy = __import__("numpy")
    # Names of types lack fields, and what types of other packages are.
    exact = type(value) in (numpy.ndarray, numpy.memmap) or isinstance(value, numpy.generic)
    if exact and not value.dtype.hasobject and numpy.dtype(value.dtype.str) == value.dtype:
        array = numpy.ascontiguousarray(value)
        return {"$": "ndarray" if isinstance(value, numpy.ndarray) else "numpy",
                "v": _base64(array.tobytes()), "shape": list(value.shape),
                "dtype": value.dtype.str}
    return None


def encode(value: Any, where: str, allow_pickle: bool = False,
           tensor: Callable[[torch.Tensor, str], Any] | None = None) -> Any:
    """Converts a value to objects that JSON can represent.

    Args:
        where: the name of the value, for messages.
        tensor: called for each tensor. Its result replaces the tensor; None: the tensor is inlined.

    Raises:
        UnsupportedValueError: a value has no such form and must not be pickled; the message names it.
    """
    # Exact types, not isinstance: a subclass would come back as its base class.
    def recurse(item: Any, at: str) -> Any:
        if type(item) is int and item.bit_length() > _INT_BITS_MAX:
            return _tagged("int", hex(item))
        if item is None or type(item) in (bool, int, str):
            return item
        if type(item) is float:
            return item if math.isfinite(item) else _tagged("float", repr(item))
        if type(item) is list:
            return [recurse(element, f"{at}[{i}]") for i, element in enumerate(item)]
        if type(item) in (tuple, set, frozenset, collections.deque, torch.Size):
            kind = "tuple" if type(item) is torch.Size else type(item).__name__
            made = _tagged(kind, [recurse(element, f"{at}[{i}]") for i, element in enumerate(item)])
            longest = getattr(item, "maxlen", None)
            return made if longest is None else {**made, "maxlen": longest}
        if type(item) in (dict, collections.OrderedDict, collections.Counter,
                          collections.defaultdict):
            return _encode_mapping(item, at, recurse)
        if type(item) in (bytes, bytearray):
            return _tagged(type(item).__name__, _base64(bytes(item)))
        if type(item) is complex:
            return _tagged("complex", [recurse(item.real, at), recurse(item.imag, at)])
        if isinstance(item, torch.Tensor) and item.layout == torch.strided \
                and not item.is_quantized:
            stands = tensor(item, at) if tensor is not None else None
            return _encode_tensor(item) if stands is None else stands
        if isinstance(item, torch.dtype):
            return _tagged("torch.dtype", str(item))
        if isinstance(item, torch.device):
            return _tagged("torch.device", str(item))
        if type(item).__module__ == "numpy" and (found := _encode_numpy(item)) is not None:
            return found
        if allow_pickle:
            return _tagged("pickle", _base64(pickle.dumps(item)))
        raise UnsupportedValueError(
            f"'{at}' is a {type(item).__module__}.{type(item).__qualname__}, which can only be "
            f"saved by pickling it: leave it out of the state, or pass allow_pickle=True and "
            f"restore only versions that you trust")
    return recurse(value, where)


def _decode_tensor(value: dict[str, Any]) -> torch.Tensor:
    dtype = dtype_of(value["dtype"])
    flat = torch.frombuffer(bytearray(base64.b64decode(value["v"])), dtype=torch.uint8) \
        if value["v"] else torch.empty(0, dtype=torch.uint8)
    return flat.view(dtype).reshape(value["shape"])


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedError(f"'{name}' is not an element type of this version of torch")
    return dtype


def _decode_numpy(value: dict[str, Any]) -> Any:
    numpy = __import__("numpy")
    array = numpy.frombuffer(base64.b64decode(value["v"]), numpy.dtype(value["dtype"]))
    array = array.reshape(value["shape"]).copy()
    return array if value["$"] == "ndarray" else array[()]


def _decode_pickle(data: str, where: str, allow_pickle: bool) -> Any:
    if not allow_pickle:
        raise UnsupportedValueError(
            f"'{where}' was saved by pickling it, and loading a pickle runs the code in it: pass "
            f"allow_pickle=True if you trust the writer of this checkpoint")
    return pickle.loads(base64.b64decode(data))


def decode(value: Any, where: str, allow_pickle: bool = False,
           tensor: Callable[[dict[str, Any]], torch.Tensor] | None = None) -> Any:
    """Reverses `encode`. `tensor` makes the tensors that the `tensor` of encode replaced."""
    sequences = {"tuple": tuple, "set": set, "frozenset": frozenset}
    mappings = {"dict": dict, "OrderedDict": collections.OrderedDict}

    # encode() tags every dictionary with a "$" key, so an untagged one is a plain dictionary.
    def recurse(item: Any, at: str) -> Any:
        if type(item) is list:
            return [recurse(element, f"{at}[{i}]") for i, element in enumerate(item)]
        if type(item) is not dict:
            return item
        kind = item.get("$")
        if kind is None:
            return {key: recurse(element, f"{at}.{key}") for key, element in item.items()}
        content = item.get("v")
        if kind in sequences:
            return sequences[kind](recurse(element, at) for element in content)
        if kind == "deque":
            return collections.deque((recurse(element, at) for element in content),
                                     item.get("maxlen"))
        if kind in mappings:
            pairs = [(recurse(key, at), recurse(element, at)) for key, element in content]
            factory = _FACTORIES.get(item.get("factory"))
            return mappings[kind](pairs) if factory is None \
                else collections.defaultdict(factory, pairs)
        if kind == "Counter":
            return collections.Counter({recurse(key, at): recurse(element, at)
                                        for key, element in content})
        if kind == "int":
            return int(content, 16)
        if kind == "float":
            return float(content)
        if kind == "complex":
            return complex(recurse(content[0], at), recurse(content[1], at))
        if kind in ("bytes", "bytearray"):
            data = base64.b64decode(content)
            return data if kind == "bytes" else bytearray(data)
        if kind == "tensor":
            return _decode_tensor(item)
        if kind == "torch.dtype":
            return dtype_of(content)
        if kind == "torch.device":
            return torch.device(content)
        if kind in ("ndarray", "numpy"):
            return _decode_numpy(item)
        if kind == "pickle":
            return _decode_pickle(content, at, allow_pickle)
        if tensor is not None:
            return tensor(item)
        raise UnsupportedError(f"'{at}' is of kind '{kind}', which this release does not know: "
                               f"install a newer release")
    return recurse(value, where)


def dumps(value: Any) -> bytes:
    """Compact JSON."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def loads(data: bytes) -> Any:
    return json.loads(data.decode("utf-8", "surrogatepass"))
