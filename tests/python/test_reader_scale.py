"""Planning in Python what a rank restores from a large version, without agents: the lists of the
version are generated."""

import time
import tracemalloc

import pytest

from holdfast import Piece
from holdfast.torch import values
from holdfast.torch.saved import LAYOUT, STATE, Saved

TENSORS = 4500
NAMES = [f"layers.{i // 36}.block.{i % 36 // 4}.{kind}" for i in range(TENSORS)
         for kind in [("weight", "exp_avg", "exp_avg_sq", "master")[i % 4]]]


class Reader:
    """What VersionReader answers for a version of `world` ranks that cut every tensor by rows. The
    list of all slices, which grows with the world, cannot be asked for."""

    version = "3-1200"

    def __init__(self, world):
        self.world = world
        self.layout = values.dumps({"format": 2, "world": world, "aliases": {}, "types": {}, "own": [],
                                    "held": [], "complete": True, "parts": {}})
        self.state = values.dumps({"parts": {}})
        self.extras_read = 0

    def own_pieces(self):
        return self.tensors()

    def tensors(self):
        rows = 16384 // self.world
        return [Piece(name, 0, 11, (rows, 64), (16384, 64), (0, 0)) for name in NAMES]

    def extra(self, rank, name):
        assert rank < self.world
        self.extras_read += 1
        # As the native module does, each call makes new bytes.
        return bytes(bytearray({LAYOUT: self.layout, STATE: self.state}[name]))


def plan(world):
    """Returns the seconds and the peak of memory for one rank that restores into half of the world."""
    reader = Reader(world)
    tracemalloc.start()
    began = time.perf_counter()
    saved = Saved(reader, 0, world // 2)
    assert len(saved.choices([NAMES[7]])) == 1 and len(saved.others(set())) == TENSORS
    assert saved.types == {} and saved.aliases == {}
    seconds, peak = time.perf_counter() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Of each rank its layout, for the types and for the aliases.
    assert reader.extras_read <= 2 * world + 4
    return seconds, peak


@pytest.mark.parametrize("worlds", [(1024, 8192)])
def test_planning_needs_no_more_memory_in_a_larger_world(worlds):
    plan(worlds[0])
    results = [plan(world) for world in worlds]
    for world, (seconds, peak) in zip(worlds, results):
        print(f"{world} ranks x {TENSORS} slices: {seconds * 1e3:.0f} ms, {peak / 2**20:.1f} MiB")
    (_, small), (seconds, large) = results
    assert large < 1.2 * small < 64 << 20
    assert seconds < 20
