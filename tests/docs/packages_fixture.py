#!/usr/bin/env python3
"""Makes what the pages install: the Debian packages that the test deploy_packages made, the wheel by the command of
docs/quickstart.md, and numpy.

  packages_fixture.py BUILD DEBS OUT

Exit code 77: the packages cannot be made here, or the pages cannot be run.
"""

import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tests" / "deploy"))
import machine  # noqa: E402
import packages_of_the_build  # noqa: E402

UNAVAILABLE = 69


def main():
    build, debs, out = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    shutil.rmtree(out, ignore_errors=True)
    reason = machine.missing() if debs.exists() else f"there is no {debs}; the test deploy_packages has the reason"
    if reason:
        print(f"SKIPPED: {reason}")
        return 77
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(debs, partial)
    code = packages_of_the_build.make(packages_of_the_build.commands()[1], build, partial)
    if code == UNAVAILABLE:
        print("SKIPPED: pip cannot install what makes a wheel")
        return 77
    if code != 0:
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
