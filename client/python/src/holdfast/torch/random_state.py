"""The generators of random numbers of this process, as values and back."""

from __future__ import annotations

import random
import struct
import sys
from typing import Any

import torch

__all__ = ["capture", "bring_back"]


def capture() -> dict[str, Any]:
    """Python's, NumPy's (where it is imported), torch's, and that of this process's CUDA device."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {"python": {"version": version, "gauss": gauss,
                                        "words": struct.pack(f"<{len(words)}Q", *words)},
                             "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def bring_back(state: dict[str, Any]) -> None:
    python = state["python"]
    words = struct.unpack(f"<{len(python['words']) // 8}Q", python["words"])
    random.setstate((python["version"], words, python["gauss"]))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        __import__("numpy").random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
