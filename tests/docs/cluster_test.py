#!/usr/bin/env python3
"""Does what docs/cluster.md describes, on four machines with a separate network.

  cluster_test.py PACKAGES
"""

import pathlib
import sys

from machine import network
from page import run

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAMES = ("node-1", "node-2", "node-3", "node-4")


def main():
    with network(NAMES, {}) as machines:
        print(f"{run(ROOT / 'docs' / 'cluster.md', machines)} blocks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
