#!/usr/bin/env python3
"""Writes the system call filter of a unit as a seccomp profile in the format of container engines.

  unit_profile.py UNIT PROFILE

Exit code 77: systemd-analyze is missing.
"""

import json
import pathlib
import shutil
import subprocess
import sys


def calls_of(name):
    """Returns the system calls of a set like @system-service, or the one call."""
    if not name.startswith("@"):
        return {name}
    listed = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True)
    calls = set()
    for line in listed.stdout.splitlines()[1:]:
        word = line.split("#")[0].strip()
        if word:
            calls |= calls_of(word)
    return calls


def main():
    unit, profile = (pathlib.Path(argument) for argument in sys.argv[1:])
    if not shutil.which("systemd-analyze"):
        print("SKIPPED: systemd-analyze is missing (deploy/install-deps.sh --ops)")
        return 77
    allowed = set()
    for line in unit.read_text().splitlines():
        if not line.startswith("SystemCallFilter="):
            continue
        words = line.split("=", 1)[1]
        for name in words.lstrip("~").split():
            allowed = allowed - calls_of(name) if words.startswith("~") else allowed | calls_of(name)
    rules = [{"names": sorted(allowed), "action": "SCMP_ACT_ALLOW"}]
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1, "syscalls": rules}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
