"""Captures and restores the random generators of this process."""

from __future__ import annotations

import binascii
import ctypes
import random
import struct
import sys
from typing import Any, Callable

import torch

from . import values

__all__ = ["capture", "capture_json", "restore"]


def capture() -> dict[str, Any]:
    """The states of Python's, NumPy's (if imported) and torch's generators, and that of the current CUDA
    device."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {"python": {"version": version, "gauss": gauss,
                                        "words": struct.pack(f"<{len(words)}Q", *words)},
                             "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def capture_json() -> bytes:
    """The same bytes as values.dumps(values.encode(capture())) in a tenth of the time, since every
    save calls this. Few generators change between two saves, and the text of the others is reused."""
    pieces = [b'{"python":', _python(), b',"torch":', _tensor("torch", torch.get_rng_state())]
    if "numpy" in sys.modules:
        pieces += b',"numpy":', _numpy(sys.modules["numpy"].random.get_state())
    if torch.cuda.is_initialized():
        pieces += b',"cuda":', _tensor("cuda", torch.cuda.get_rng_state())
    pieces.append(b"}")
    return b"".join(pieces)


#: For each generator: its words as bytes, and their base64.
_encoded: dict[str, tuple[bytes, bytes]] = {}


def _text(name: str, words: bytes, stored: Callable[[bytes], bytes] = bytes) -> bytes:
    """The base64 of stored(words), made again only if the words differ from those of the last call."""
    known = _encoded.get(name)
    if known is not None and known[0] == words:
        return known[1]
    text = _base64(stored(words))
    _encoded[name] = words, text
    return text


class _Memory:
    """Where the words of one of Python's generators are within its object: the place in the words, then
    the words. getstate() makes 625 numbers of them at each call."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator
        words = _narrow(generator.getstate()[1])
        found = ctypes.string_at(id(generator), type(generator).__basicsize__).find(words)
        #: None: they are not within the object.
        self._address = None if found < 0 else id(generator) + found
        self._bytes = len(words)

    def read(self) -> bytes:
        if self._address is None:
            return _narrow(self.generator.getstate()[1])
        return ctypes.string_at(self._address, self._bytes)


_memory: _Memory | None = None


def _narrow(words: tuple[int, ...]) -> bytes:
    return struct.pack(f"{len(words)}I", words[-1], *words[:-1])


def _wide(narrow: bytes) -> bytes:
    place, *words = struct.unpack(f"{len(narrow) // 4}I", narrow)
    return struct.pack(f"<{len(words) + 1}Q", *words, place)


def _python() -> bytes:
    global _memory
    generator = getattr(random.getstate, "__self__", None)
    if type(generator) is random.Random:
        if _memory is None or _memory.generator is not generator:
            _memory = _Memory(generator)
        version, words, gauss = generator.VERSION, _memory.read(), generator.gauss_next
    else:  # the program replaced the function
        version, numbers, gauss = random.getstate()
        words = _narrow(numbers)
    return b'{"version":%d,"gauss":%s,"words":{"$":"bytes","v":"%s"}}' % (
        version, b"null" if gauss is None else repr(gauss).encode(), _text("python", words, _wide))


def _base64(data: bytes) -> bytes:
    return binascii.b2a_base64(data, newline=False)


def _tensor(name: str, state: torch.Tensor) -> bytes:
    """Encodes the state of a torch generator: dense bytes in host memory, one-dimensional."""
    size = state.numel()
    return b'{"$":"tensor","v":"%s","shape":[%d],"dtype":"torch.uint8"}' % (
        _text(name, ctypes.string_at(state.data_ptr(), size)), size)


def _numpy(state: Any) -> bytes:
    if type(state) is not tuple or len(state) != 5:
        return values.dumps(values.encode(state, "random.numpy"))
    name, words, place, has_gauss, gauss = state
    return b'{"$":"tuple","v":["%s",{"$":"ndarray","v":"%s","shape":[%d],"dtype":"%s"},%d,%d,%s]}' \
        % (name.encode(), _text("numpy", words.tobytes()), len(words), words.dtype.str.encode(), place,
           has_gauss, repr(gauss).encode())


def restore(state: dict[str, Any]) -> None:
    """Sets the generators to captured states."""
    python = state["python"]
    words = struct.unpack(f"<{len(python['words']) // 8}Q", python["words"])
    random.setstate((python["version"], words, python["gauss"]))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        __import__("numpy").random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
