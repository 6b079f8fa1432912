#!/usr/bin/env python3
"""Runs ctest, and succeeds only when every test passes at the first attempt.

  deploy/ctest.py [--flaky FILE] -- CTEST ARGUMENT...

Tests that FILE lists may fail without failing the run; they are shown. Skipped tests and cases are counted and
shown with their reasons. ctest's own summary is the end of the output.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

SUMMARY = re.compile(r"^\d+% tests passed")
# The output of a skipped case of GoogleTest, and pytest's list of skipped cases (-rs).
GTEST_SKIP = re.compile(r"^.*: Skipped\n((?:(?!\[).*\n)*?)\n*\[  SKIPPED \] (\S+?)(?: \(\d+ ms\))?$", re.MULTILINE)
PYTEST_SKIP = re.compile(r"^SKIPPED \[(\d+)\] (\S+): (.*)$", re.MULTILINE)


def read_flaky(path):
    """Returns name → reason. A line is a test's name and the reason for its entry; '#' begins a comment."""
    listed = {}
    for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), start=1):
        line = line.split("#", 1)[0].strip()
        if not line:
            continue
        name, _, reason = line.partition(" ")
        if not reason.strip():
            raise ValueError(f"{path}:{number}: '{name}' has no reason")
        listed[name] = reason.strip()
    return listed


def skips_of(name, output):
    """Returns (case, reason) of each case that a test skipped."""
    found = [(f"{name}: {case}", " ".join(reason.split()) or "no reason given")
             for reason, case in GTEST_SKIP.findall(output)]
    found += [(f"{name}: {place} ({count} cases)", reason) for count, place, reason in PYTEST_SKIP.findall(output)]
    return found


def whole_skip(output):
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "SKIP" in line.upper()), lines[-1] if lines else "no reason given")


def read_results(path):
    """Returns the names of the tests that failed, and (test or case, reason) of everything that was skipped."""
    failed, skipped = [], []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name, status = case.get("name"), case.get("status")
        output = case.findtext("system-out") or ""
        if status == "fail":
            failed.append(name)
        elif status in ("notrun", "disabled"):
            skipped.append((name, whole_skip(output)))
        skipped += skips_of(name, output) if status == "run" else []
    return failed, skipped


def known_tests(arguments):
    """Returns all tests of the build folder, including those that are not selected now."""
    at = arguments.index("--test-dir") if "--test-dir" in arguments else None
    where = arguments[at:at + 2] if at is not None else []
    listing = subprocess.run(["ctest", "-N", *where], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^ *Test +#\d+: (\S+)", listing, re.MULTILINE))


def run(arguments, results):
    """Runs ctest. Returns its exit code and the lines of its summary, which are not printed yet."""
    command = ["ctest", *arguments, "--output-junit", results, "--test-output-size-passed", "4000000",
               "--test-output-size-failed", "4000000"]
    kept = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        for line in process.stdout:
            if kept or SUMMARY.match(line):
                kept.append(line)
            else:
                print(line, end="", flush=True)
    return process.returncode, kept


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flaky", metavar="FILE", help="tests that may fail, each with a reason")
    parser.add_argument("arguments", nargs="+", metavar="CTEST ARGUMENT")
    options = parser.parse_args()
    flaky = read_flaky(options.flaky) if options.flaky else {}
    unknown = sorted(flaky.keys() - known_tests(options.arguments)) if flaky else []
    if unknown:
        sys.exit(f"{options.flaky} lists tests that do not exist: {', '.join(unknown)}; remove or rename them")
    with tempfile.TemporaryDirectory() as folder:
        results = pathlib.Path(folder) / "results.xml"
        code, summary = run(options.arguments, str(results))
        failed, skipped = read_results(results) if results.exists() else ([], [])
    if skipped:
        print(f"\nSkipped: {len(skipped)}")
        for what, reason in skipped:
            print(f"  {what}: {reason}")
    excused = [name for name in failed if name in flaky]
    if flaky:
        print(f"\nListed as flaky: {len(flaky)}, of which {len(excused)} failed in this run")
        for name, reason in sorted(flaky.items()):
            print(f"  {name} ({'FAILED' if name in excused else 'passed or not run'}): {reason}")
    print("\n" + "".join(summary), end="", flush=True)
    if code != 0 and failed and len(excused) == len(failed):
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
