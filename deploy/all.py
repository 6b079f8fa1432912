#!/usr/bin/env python3
"""Runs all parts of the tests, including those that the default run omits, and shows a table of results and times.

  deploy/test.sh --all                      all parts, except those that have passed on this tree before
  deploy/test.sh --all --only fuzz ...      only these parts, regardless of earlier results
  deploy/test.sh --all --again              all parts again
  deploy/test.sh --all --list               lists the parts

A failed part does not stop the others. Exit code 1 when a part failed. build/all has the log of each part.
"""

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CTEST = "python3 deploy/ctest.py --flaky tests/flaky.txt -- --test-dir build/test --output-on-failure --no-tests=error"


def case(program, chosen, limit_s, variables):
    """Returns a command that runs a case of a test program. ctest would end it after the time limit of a short run."""
    return (f"deploy/test.sh --build && HOLDFAST_BIN_DIR=build/test/bin {variables} timeout {limit_s} "
            f"build/test/tests/{program} --gtest_filter={chosen}")


# Name, description, command. Each command must work without the parts before it.
PARTS = [
    ("default", "every test, the storage and arena tests under ASan and UBSan", "deploy/test.sh"),
    ("frameworks", "the real Hugging Face, Lightning and DeepSpeed",
     f"deploy/test.sh --build && HOLDFAST_FRAMEWORKS=1 {CTEST} -R 'python_(environment|frameworks)'"),
    ("slow-links", "slow, cut and partitioned links, on a machine without other load",
     f"deploy/test.sh --build && HOLDFAST_QUIET_MACHINE=1 {CTEST} "
     "-R 'e2e_(SlowLinksOfANode|ASlowLink|APartitioned|ASpareReplacesAPartitioned|AnIsolatedNodeThat|ALinkBetween"
     "|AnInterruptedPartition)'"),
    ("drills", "20 random drills, one after the other",
     case("drill_command_test", "DrillCommandTest.RandomDrillsLeaveNothingBehind", 3600, "HOLDFAST_DRILLS=20")),
    ("torn-snapshots", "1,000 steps that race with the copy",
     f"deploy/test.sh --build && {CTEST} -R python_environment && HOLDFAST_BIN_DIR=$PWD/build/test/bin "
     "OMP_NUM_THREADS=1 HOLDFAST_TRIES=1000 "
     "timeout 3600 tests/python/run.sh $PWD/build/test/python-environment test_guard.py"),
    ("healthy-training", "half an hour of healthy training in each mode, on a loaded machine",
     f"deploy/test.sh --build && HOLDFAST_HEALTHY_S=1800 {CTEST} -R 'python_(environment|healthy)'"),
    ("network-faults", "every kind of network fault, each in a separate phase",
     case("hostile_network_test", "HostileNetworkTest.NoWrongByteIsEverAccepted", 3600, "HOLDFAST_EVERY_FAULT=1")),
    ("lost-nodes", "all 36 sets of lost nodes of a group of 8 that survives 2",
     case("peer_test", "PeerTest.EverySetOfUpToMLostNodesIsRestored", 7200, "HOLDFAST_GROUP=8,2,1")),
    ("departures", "a node of a job is stopped at 20 random times, and loses at most one step each time",
     case("departure_test", "GraceTest.ANodeThatIsStoppedAtAnyTimeLosesAtMostOneStep", 1800, "HOLDFAST_PHASES=20")),
    ("fuzz", "each fuzzer for ten minutes, starting from its corpus", "deploy/fuzz.sh"),
    ("tsan", "all tests under ThreadSanitizer, including both servers", "deploy/test.sh --tsan"),
    ("asan", "all tests under ASan and UBSan", "deploy/test.sh --asan"),
    ("checkov", "checkov on the Kubernetes manifests", "tests/deploy/checkov.sh build/checkov-environment"),
    ("lint", "clang-format and clang-tidy on the complete tree", "deploy/test.sh --lint"),
    ("mutation", "planted bugs, each with the test that catches it",
     "deploy/test.sh --build && tests/mutation/run.py --json build/all/mutation.json"),
]


def tree_id():
    """Returns an ID of the commit and of all uncommitted changes."""
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout
    new = git("ls-files", "-z", "--others", "--exclude-standard")
    changes = git("diff", "HEAD") + new
    for name in new.split(b"\0"):
        if name:
            changes += (ROOT / os.fsdecode(name)).read_bytes()
    return git("rev-parse", "HEAD").decode().strip() + (
        "+" + hashlib.sha256(changes).hexdigest()[:12] if changes else "")


def run(name, command, folder):
    begin = time.monotonic()
    log = folder / f"{name}.log"
    with open(log, "wb") as out:
        code = subprocess.run(["bash", "-c", command], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL).returncode
    return {"passed": code == 0, "code": code, "seconds": round(time.monotonic() - begin), "log": str(log)}


def table(parts, results):
    width = max(len(name) for name, _, _ in parts)
    for name, what, _ in parts:
        result = results.get(name)
        if result is None:
            print(f"{name:{width}}  {'not run':>9}  {'':>8}  {what}")
            continue
        word = "passed" if result["passed"] else f"FAILED {result['code']}"
        minutes, seconds = divmod(result["seconds"], 60)
        print(f"{name:{width}}  {word:>9}  {minutes:4d}:{seconds:02d}m  {what}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     prog="deploy/test.sh --all")
    parser.add_argument("--only", nargs="+", action="extend", default=[], metavar="NAME", help="run only these parts")
    parser.add_argument("--again", action="store_true", help="also run the parts that have passed on this tree")
    parser.add_argument("--list", action="store_true", help="list the parts and exit")
    parser.add_argument("--state", default=str(ROOT / "build" / "all"), help="folder of logs and results")
    options = parser.parse_args()
    parts = json.loads(os.environ["HOLDFAST_TEST_PARTS"]) if "HOLDFAST_TEST_PARTS" in os.environ else PARTS
    names = [name for name, _, _ in parts]
    unknown = [name for name in options.only if name not in names]
    if unknown:
        print(f"unknown parts: {', '.join(unknown)}; known: {', '.join(names)}", file=sys.stderr)
        return 64
    if options.list:
        table(parts, {})
        return 0
    folder = pathlib.Path(options.state)
    folder.mkdir(parents=True, exist_ok=True)
    state_file = folder / "results.json"
    tree = tree_id()
    state = json.loads(state_file.read_text()) if state_file.exists() else {}
    results = state.get("results", {}) if state.get("tree") == tree else {}
    for name, what, command in parts:
        if options.only and name not in options.only:
            continue
        if results.get(name, {}).get("passed") and not options.again and not options.only:
            print(f"{name}: passed on this tree before", flush=True)
            continue
        print(f"{name}: {what} ...", flush=True)
        results[name] = run(name, command, folder)
        outcome = "passed" if results[name]["passed"] else f"FAILED, see {results[name]['log']}"
        print(f"{name}: {outcome} ({results[name]['seconds']} s)", flush=True)
        state_file.write_text(json.dumps({"tree": tree, "results": results}, indent=1))
    print(f"\nTree {tree}, {os.cpu_count()} processors")
    table(parts, results)
    return 0 if all(result["passed"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
