#!/usr/bin/env python3
"""Makes the Debian packages of the programs in a build folder, with the command of docs/quickstart.md.

  packages_of_the_build.py BUILD OUT

Exit code 77: a tool is missing.
"""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "docs"))
import page  # noqa: E402

TOOLS = ("dh", "dpkg-buildpackage", "fakeroot", "help2man")


def commands():
    """Returns the commands of the page that make the Debian packages and the wheel."""
    found = [line for block in page.read(ROOT / "docs" / "quickstart.md") if block.mark == "not-run packages"
             for line in block.text.splitlines() if line.startswith("deploy/package.sh")]
    assert len(found) == 2 and "--wheel" in found[1], found
    return [shlex.split(command, comments=True) for command in found]


def make(words, build, out):
    """Runs a command of the page for the build folder, and returns its exit code."""
    words = list(words)
    words[words.index("--out") + 1] = str(out)
    return subprocess.run([*words, "--from", str(build)], cwd=ROOT, check=False,
                          env={**os.environ, "DEB_BUILD_OPTIONS": "noautodbgsym"}).returncode


def main():
    build, out = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    shutil.rmtree(out, ignore_errors=True)
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        print(f"SKIPPED: {', '.join(absent)} missing; see deploy/install-deps.sh --ops")
        return 77
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    if make(commands()[0], build, partial) != 0:
        return 1
    partial.rename(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
