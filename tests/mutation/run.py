#!/usr/bin/env python3
"""Plants each bug of tests/mutation/lists and shows which test catches it.

A copy of the tree is compiled once with all bugs, and $HOLDFAST_MUTATION selects one. Bugs in the Python package and in
scripts are planted in copies of the files while their tests run. The tree itself is only read.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import fnmatch
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import mutants


@dataclasses.dataclass
class Outcome:
    """The outcome of one test: passed, failed (with the case), or timed out."""

    passed: bool
    why: str = ""


class Runner:
    def __init__(self, options):
        self.options = options
        self.tree = pathlib.Path(options.copy).resolve()
        self.build = self.tree / "build" / "dev"
        self.baseline = {}

    def command(self, spec):
        """Returns the command for "target[:filter]", "pytest:file[::case]" or "script:path [argument...]"."""
        if spec.startswith("pytest:"):
            file, _, case = spec.removeprefix("pytest:").partition("::")
            path = str(self.tree / "tests" / "python" / file) + (f"::{case}" if case else "")
            return [self.options.python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", path]
        if spec.startswith("script:"):
            path, *arguments = spec.removeprefix("script:").split()
            return [str(self.tree / path), *arguments]
        target, _, chosen = spec.partition(":")
        filters = [f"--gtest_filter={chosen}"] if chosen else []
        return [str(self.build / "tests" / target), "--gtest_fail_fast", *filters]

    def run(self, spec, environment):
        # The installed package and its programs come from the build that the interpreter belongs to.
        build = pathlib.Path(self.options.python).parent.parent.parent if spec.startswith("pytest:") else self.build
        merged = {**os.environ, "HOLDFAST_BIN_DIR": str(build / "bin"), "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8",
                  **environment}
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(self.command(spec), stdout=output, stderr=subprocess.STDOUT, env=merged,
                                       cwd=self.tree, start_new_session=True)
            try:
                code = process.wait(self.options.timeout)
            except subprocess.TimeoutExpired:
                code = None
            # Kill all processes that the test left running.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")
        if code == 0:
            if re.search(r"Running 0 tests|no tests ran", text):
                return Outcome(False, "the filter matches no test")
            return Outcome(True)
        if code is None:
            return Outcome(False, f"{last_case(text)}: timed out after {self.options.timeout:.0f} s")
        return Outcome(False, failed_case(text) or f"{last_case(text)}: exit {code}")

    def fits(self, spec):
        """Returns the test's outcome without a bug. Runs it only once."""
        if spec not in self.baseline:
            self.baseline[spec] = self.run(spec, {"HOLDFAST_MUTATION": "0"})
        return self.baseline[spec]

    def planted(self, one):
        """Returns a context with the environment that activates the bug."""
        if one.compiled:
            return contextlib.nullcontext({"HOLDFAST_MUTATION": str(one.number)})
        return self.package_copy(one) if one.in_package else self.script_copy(one)

    @contextlib.contextmanager
    def package_copy(self, one):
        with tempfile.TemporaryDirectory(prefix="holdfast-mutation-") as folder:
            installed = subprocess.run(
                [self.options.python, "-c", "import holdfast; print(holdfast.__path__[0])"],
                check=True, capture_output=True, text=True, env={"PATH": os.environ["PATH"]}).stdout.strip()
            package = pathlib.Path(folder) / "holdfast"
            shutil.copytree(installed, package, ignore=shutil.ignore_patterns("__pycache__"))
            path = pathlib.Path(folder) / one.file.removeprefix(mutants.PACKAGE)
            text = path.read_text()
            if text.count(one.original) != 1:
                raise RuntimeError(f"{one.id}: the installed package is not from this tree: install it again")
            path.write_text(text.replace(one.original, one.mutated, 1))
            before = os.environ.get("PYTHONPATH", "")
            yield {"PYTHONPATH": folder + (f":{before}" if before else ""), "PYTHONDONTWRITEBYTECODE": "1"}

    @contextlib.contextmanager
    def script_copy(self, one):
        path = self.tree / one.file
        text = path.read_text()
        path.write_text(text.replace(one.original, one.mutated, 1))
        try:
            yield {}
        finally:
            path.write_text(text)

    def judge(self, one):
        begin = time.monotonic()
        result = {"id": one.id, "file": one.file, "breaks": one.breaks, "outcome": "SURVIVED", "by": ""}
        if one.compiled and one.number == 0:
            return {**result, "outcome": "NOT RUN", "by": "it is not in the copy: build the copy", "seconds": 0.0}
        sound = [spec for spec in one.tests if self.fits(spec).passed]
        if not sound:
            why = "; ".join(f"{spec} fails without a bug: {self.fits(spec).why}" for spec in one.tests)
            result.update(outcome="NOT RUN", by=why)
        with self.planted(one) as environment:
            for spec in sound:
                outcome = self.run(spec, environment)
                if not outcome.passed:
                    result.update(outcome="caught", by=f"{spec.partition(':')[0]}: {outcome.why}")
                    break
        if result["outcome"] != "caught" and one.argued:
            result.update(outcome="argued", by=one.argued)
        result["seconds"] = round(time.monotonic() - begin, 1)
        return result


def failed_case(text):
    case = (re.search(r"\[  FAILED  \] ([\w./]+)", text) or re.search(r"FAILED \S*?([\w.]+::\S+)", text)
            or re.search(r"^(?:FAIL|ERROR): (\w+)", text, re.MULTILINE))
    return case.group(1) if case else ""


def last_case(text):
    cases = re.findall(r"\[ RUN      \] ([\w./]+)", text)
    return cases[-1] if cases else "the test"


def prepare(options, mutations, wanted, runner):
    if options.no_build:
        # Use the numbers that were compiled: the list may have changed since.
        numbers = json.loads((runner.tree / mutants.MARKER).read_text())
        for one in mutations:
            one.number = numbers.get(one.id, 0)
        return
    written = mutants.write_copy(mutations, runner.tree)
    print(f"{runner.tree}: {written} files written", flush=True)
    targets = sorted({spec.partition(":")[0] for one in wanted if one.compiled for spec in one.tests
                      if not spec.startswith(("pytest:", "script:"))})
    if not targets:
        return
    configure = ["cmake", "--preset", "dev", "-DHOLDFAST_MUTATIONS=ON", "-DHOLDFAST_BENCHMARKS=OFF",
                 "-DHOLDFAST_ROOM_CHECKS=OFF", *options.cmake]
    subprocess.run(configure, cwd=runner.tree, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["nice", "ninja", "-C", str(runner.build), f"-j{options.jobs}", "-k0", *targets], check=True)


def table(results):
    width = max(len(result["id"]) for result in results)
    for result in results:
        print(f"{result['id']:{width}}  {result['outcome']:8}  {result['by']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--copy", default=str(mutants.ROOT / "build" / "mutation" / "tree"),
                        help="folder for the copy of the tree and its build (default: %(default)s)")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN",
                        help="only bugs whose ID or file matches; may be repeated")
    parser.add_argument("--python", default=str(mutants.ROOT / "build" / "test" / "python-environment/bin/python"),
                        help="an interpreter with the package installed; without it Python bugs are not run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel jobs (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds per test (default: 120)")
    parser.add_argument("--cmake", action="append", default=[], metavar="ARGUMENT", help="passed to cmake")
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file")
    parser.add_argument("--goal", type=float, default=98, help="per cent that must be caught (default: 98)")
    parser.add_argument("--no-build", action="store_true", help="use the copy as it is built now")
    parser.add_argument("--list", action="store_true", help="list the bugs and exit")
    options = parser.parse_args()

    mutations = mutants.load()
    wrong = mutants.problems(mutations)
    if wrong:
        sys.exit("\n".join(wrong))
    wanted = [one for one in mutations if not options.only or any(
        fnmatch.fnmatch(one.id, pattern) or fnmatch.fnmatch(one.file, pattern) for pattern in options.only)]
    if not wanted:
        sys.exit("no bug matches")
    if options.list:
        for one in wanted:
            print(f"{one.id}: {one.breaks}")
        return 0
    runner = Runner(options)
    prepare(options, mutations, wanted, runner)
    if not pathlib.Path(options.python).exists():
        left_out = [one.id for one in wanted if any(spec.startswith("pytest:") for spec in one.tests)]
        wanted = [one for one in wanted if one.id not in left_out]
        if left_out:
            print(f"{options.python} does not exist: {len(left_out)} bugs of the Python package are not run")

    # Bugs in scripts change files of the copy, so they run one at a time; all others run in parallel.
    scripts = [one for one in wanted if not one.compiled and not one.in_package]
    others = [one for one in wanted if one not in scripts]
    results = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = [pool.submit(runner.judge, one) for one in others]
        running += [pool.submit(lambda: [runner.judge(one) for one in scripts])] if scripts else []
        for done in concurrent.futures.as_completed(running):
            for result in done.result() if isinstance(done.result(), list) else [done.result()]:
                results.append(result)
                print(f"[{len(results)}/{len(wanted)}] {result['id']}: {result['outcome']} "
                      f"({result['seconds']} s) {result['by']}", flush=True)
    results.sort(key=lambda result: (result["file"], result["id"]))
    print()
    table(results)
    caught = sum(result["outcome"] == "caught" for result in results)
    argued = sum(result["outcome"] == "argued" for result in results)
    share = 100 * caught / len(results)
    print(f"\n{caught} of {len(results)} caught ({share:.1f} %), {argued} argued, "
          f"{len(results) - caught - argued} neither")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"schema": 1, "caught": caught, "results": results}, indent=1))
    return 0 if share >= options.goal and caught + argued == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
