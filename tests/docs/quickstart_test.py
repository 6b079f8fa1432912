#!/usr/bin/env python3
"""Does what docs/quickstart.md describes, on a separate machine.

  quickstart_test.py PACKAGES
"""

import pathlib
import sys

from machine import start
from page import run

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def main():
    machine = start("node-1", {})
    try:
        print(f"{run(ROOT / 'docs' / 'quickstart.md', {'node-1': machine})} blocks")
    finally:
        machine.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
