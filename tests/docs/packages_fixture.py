#!/usr/bin/env python3
"""Makes the packages that the pages install: runs the commands of docs/quickstart.md that make them, on a build folder.

  packages_fixture.py BUILD OUT

Exit code 77: the packages cannot be made here.
"""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import machine
import page

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOLS = ("dh", "dpkg-buildpackage", "fakeroot", "help2man")
UNAVAILABLE = 69


def main():
    build, out = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    shutil.rmtree(out, ignore_errors=True)
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    reason = f"{', '.join(absent)} missing; see deploy/install-deps.sh --ops" if absent else machine.missing()
    if reason:
        print(f"SKIPPED: {reason}")
        return 77
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    commands = [line for block in page.read(ROOT / "docs" / "quickstart.md") if block.mark == "not-run packages"
                for line in block.text.splitlines() if line.startswith("deploy/package.sh")]
    assert len(commands) == 2, commands
    for command in commands:
        words = shlex.split(command, comments=True)
        words[words.index("--out") + 1] = str(partial)
        result = subprocess.run([*words, "--from", str(build)], cwd=ROOT, check=False,
                                env={**os.environ, "DEB_BUILD_OPTIONS": "noautodbgsym"})
        if result.returncode == UNAVAILABLE:
            print("SKIPPED: pip cannot install what makes a wheel")
            return 77
        if result.returncode != 0:
            return 1
    # The machines of the pages have no network.
    pip = partial / "pip"
    subprocess.run(["/usr/bin/python3", "-m", "venv", pip], check=True)
    fetched = subprocess.run([pip / "bin" / "pip", "download", "--quiet", "--no-deps", "--dest", partial / "index",
                              "numpy"], check=False)
    shutil.rmtree(pip)
    if fetched.returncode != 0:
        print("SKIPPED: pip cannot fetch numpy")
        return 77
    partial.rename(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
