"""The shared libraries of this package that other programs load."""

from __future__ import annotations

import pathlib

from .errors import UnsupportedError

__all__ = ["nccl_profiler"]


def nccl_profiler() -> str:
    """The path of the profiler plugin for NCCL. Set NCCL_PROFILER_PLUGIN to this path.

    Raises UnsupportedError if the package was built without the plugin.
    """
    path = pathlib.Path(__file__).with_name("libnccl-profiler-holdfast.so")
    if not path.exists():
        raise UnsupportedError(f"{path} is missing: this package was built from a client library without "
                               f"the plugin. Install the wheel that deploy/package.sh --wheel makes")
    return str(path)
