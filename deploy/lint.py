#!/usr/bin/env python3
"""Runs clang-tidy on every source of a build folder, several sources at a time: most of its time goes into the headers
that they share. A unit that passed is not checked again while its inputs are unchanged, so a run that was interrupted
continues where it stopped.

  deploy/lint.py BUILD     BUILD has a compile_commands.json of a unity build. Its path contains "UnifiedSource":
                           Clang's analyzer follows the paths of included sources only if the name of the unit does.
"""

import collections
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

TIDY = "clang-tidy-14"
ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = ("tests", "testing", "bench")
# The analyzer would spend nine tenths of the time on the paths through the macros of GoogleTest: in tests it visits at
# most this many states of a function. In the product it has its default.
TEST_ARGUMENTS = ["-Xclang", "-analyzer-config", "-Xclang", "max-nodes=5000"]


@functools.lru_cache(maxsize=None)
def digest(path):
    try:
        return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


class Unit:
    """Sources that are checked together, and a record of the last result."""

    def __init__(self, build, root, sources, compiler, options, tests):
        self.build, self.root, self.sources, self.compiler = build, root, sources, compiler
        self.options, self.tests = options, tests
        self.name = re.sub(r"\W", "-", os.path.relpath(sources[0], root)) + (
            f"+{len(sources) - 1}" if len(sources) > 1 else "")
        self.path = build / "lint" / (self.name + os.path.splitext(sources[0])[1])
        self.arguments = options + (TEST_ARGUMENTS if tests else [])
        self.record_path = self.path.with_suffix(".json")
        self.text = "".join(f'#include "{source}"\n' for source in sources)
        # The commit is different in each run and decides nothing.
        same = [word for word in self.arguments if not word.startswith("-DHOLDFAST_COMMIT=")]
        checks = re.sub(r"(?m)^ *#.*\n", "", (root / ".clang-tidy").read_text())
        parts = (self.text, same, checks, tidy_version())
        self.key = hashlib.sha256(repr(parts).encode()).hexdigest()

    def record(self):
        """Returns the record of the last check, or an empty one when an input has changed since."""
        try:
            record = json.loads(self.record_path.read_text())
        except (OSError, ValueError):
            return {}
        if record["key"] != self.key or any(digest(path) != want for path, want in record["inputs"].items()):
            return {}
        return record

    def check(self):
        """Returns the record of a check, and the output of clang-tidy."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.text)
        # The inputs are read first: a file that changes during the check has a different digest in the next run.
        listed = self.path.with_suffix(".d")
        compiled = subprocess.run(
            [self.compiler, *self.arguments, "-w", "-fsyntax-only", "-ferror-limit=0", "-MD", "-MF", str(listed),
             str(self.path)], cwd=self.build, capture_output=True, text=True)
        words = listed.read_text().partition(":")[2].replace("\\\n", " ").split() if listed.exists() else []
        record = {"key": self.key, "inputs": {str(self.build / path): digest(self.build / path) for path in words}}
        if compiled.returncode != 0 and len(self.sources) > 1:
            # Two sources can have the same name in an unnamed namespace. The compiler names the second one.
            named = set(re.findall(r"(?m)^([^\s:]+):\d+:\d+: (?:fatal )?error: ", compiled.stderr))
            record["apart"] = [source for source in self.sources if source in named]
            why = compiled.stderr.partition(" error: ")[2].partition("\n")[0]
            print(f"clang-tidy: {self.name} is checked in two parts: {why}", file=sys.stderr, flush=True)
            output = ""
        else:
            run = subprocess.run([TIDY, "--quiet", str(self.path), "--", *self.arguments], cwd=self.build,
                                 capture_output=True, text=True)
            record["passed"] = run.returncode == 0
            output = run.stdout or run.stderr
        if record.get("passed", True):
            self.record_path.write_text(json.dumps(record))
        return record, output

    def parts(self, apart):
        """Returns two units: the sources that must be checked apart, and the others."""
        if not 0 < len(apart) < len(self.sources):
            apart = self.sources[:len(self.sources) // 2]
        rest = [source for source in self.sources if source not in apart]
        return [Unit(self.build, self.root, part, self.compiler, self.options, self.tests) for part in (rest, apart)]


@functools.lru_cache(maxsize=None)
def tidy_version():
    return subprocess.run([TIDY, "--version"], capture_output=True, text=True).stdout


def command_of(words):
    """Returns the words of a compiler command that decide what clang-tidy sees, without the file and its object."""
    words = words[:words.index("-o")]
    if os.path.basename(words[0]) == "ccache":
        del words[0]
    return [word for word in words if not word.startswith(("-fPI", "-O", "-g"))]


def units_of(build, root):
    """Returns the units of a build folder."""
    commands, sources = collections.defaultdict(list), {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = entry["file"]
        if "_proto.dir/" in file or "/header_check" in file:
            continue
        words = command_of(shlex.split(entry["command"]))
        # All sources have all options, so that they can share a unit. -isystem has two words.
        options = re.findall(r"-isystem\n.*|.+", "\n".join(words[1:]))
        commands[words[0]] += [option for option in options if option not in commands[words[0]]]
        unity = "/Unity/" in file
        for source in re.findall(r'#include "([^"]+)"', pathlib.Path(file).read_text()) if unity else [file]:
            sources[source] = words[0]
    groups = collections.defaultdict(list)
    for source, compiler in sorted(sources.items()):
        tests = os.path.relpath(source, root).split("/")[0] in TESTS
        # The examples see only the client's own Status and Result.
        parts = groups[compiler, tests, "/client/examples/" in source]
        if not parts or ended(parts[-1]):
            parts.append([])
        parts[-1].append(source)
    options = {compiler: "\n".join(words).split("\n") for compiler, words in commands.items()}
    return [Unit(build, root, part, compiler, options[compiler], tests)
            for (compiler, tests, _), parts in groups.items() for part in parts]


def ended(part):
    """Returns whether a unit is complete. Its last name decides: a new source changes only the units next to it."""
    return len(part) == 24 or len(part) >= 8 and hashlib.sha256(part[-1].encode()).digest()[0] % 8 == 0


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    root = pathlib.Path(os.environ.get("HOLDFAST_LINT_ROOT", ROOT))
    units = units_of(build, root)
    if "--sources" in sys.argv[2:]:
        print("\n".join(sorted(source for unit in units for source in unit.sources)))
        return 0
    before = checked = 0
    failed = []
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting, running = collections.deque(units), {}
        while waiting or running:
            while waiting and len(running) < os.cpu_count():
                unit = waiting.popleft()
                record = unit.record()
                if "apart" in record:
                    waiting.extendleft(unit.parts(record["apart"]))
                elif record:
                    before += 1
                else:
                    running[pool.submit(unit.check)] = unit
            for done in concurrent.futures.wait(running, return_when="FIRST_COMPLETED").done if running else ():
                unit = running.pop(done)
                record, output = done.result()
                if "apart" in record:
                    waiting.extendleft(unit.parts(record["apart"]))
                    continue
                checked += 1
                if not record["passed"]:
                    failed.append(unit)
                    print(output, flush=True)
                print(f"clang-tidy: {unit.name} {'passed' if record['passed'] else 'FAILED'}, {len(waiting)} wait, "
                      f"{time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    print(f"clang-tidy: {before + checked - len(failed)} units clean ({before} unchanged since they passed), "
          f"{len(failed)} with findings", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
