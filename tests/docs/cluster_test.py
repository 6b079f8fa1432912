#!/usr/bin/env python3
"""Does what docs/cluster.md describes, on four machines with a separate network.

  cluster_test.py PACKAGES
"""

import pathlib
import sys
import tempfile

from machine import Machine
from page import run

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAMES = ("node-1", "node-2", "node-3", "node-4")


def main():
    packages = pathlib.Path(sys.argv[1]).resolve()
    if not packages.exists():
        print(f"SKIPPED: there is no {packages}; the test docs_packages has the reason")
        return 77
    machines = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-docs-") as shared:
        try:
            for name in NAMES:
                (pathlib.Path(shared) / name).mkdir()
                machines[name] = Machine(name, {"packages": packages}, shared)
                # pip finds numpy here instead of on the network.
                machines[name].run("export PIP_NO_INDEX=1 PIP_FIND_LINKS=/root/packages/index", "the start")
            first, *others = machines.values()
            first.connect("10.77.0", others)
            print(f"{run(ROOT / 'docs' / 'cluster.md', machines)} blocks")
        finally:
            for machine in machines.values():
                machine.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
