#!/usr/bin/env python3
"""Does what docs/quickstart.md describes, on a separate machine.

  quickstart_test.py PACKAGES
"""

import pathlib
import sys

from machine import Machine
from page import run

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def main():
    packages = pathlib.Path(sys.argv[1]).resolve()
    if not packages.exists():
        print(f"SKIPPED: there is no {packages}; the test docs_packages has the reason")
        return 77
    machine = Machine("node-1", {"packages": packages})
    try:
        # pip finds numpy here instead of on the network.
        machine.run("export PIP_NO_INDEX=1 PIP_FIND_LINKS=/root/packages/index", "the start")
        print(f"{run(ROOT / 'docs' / 'quickstart.md', {'node-1': machine})} blocks")
    finally:
        machine.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
