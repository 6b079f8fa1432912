#!/usr/bin/env python3
"""Applies the diffs of docs/migrate.md to its programs, and runs the programs before and after.

  migrate_test.py PYTHON_ENVIRONMENT BIN

A program whose framework the environment lacks is only compiled. HOLDFAST_FRAMEWORKS=1 at the test python_environment
installs the frameworks.
"""

import ast
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest

import page

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LAST, PART = 30, 15


def programs():
    """Returns name → (program, diff), as the page has them."""
    found = {}
    for block in page.read(ROOT / "docs" / "migrate.md"):
        kind, _, name = block.mark.partition("=")
        if kind == "before":
            assert name not in found, block.place
            found[name] = (block.text, "")
        elif kind == "after":
            assert found[name][1] == "", block.place
            found[name] = (found[name][0], block.text)
        else:
            raise AssertionError(f"{block.place}: the block is marked '{block.mark}', and not before= or after=")
    return found


class MigrateTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="holdfast-migrate-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def test_the_page_has_four_programs(self):
        self.assertEqual(sorted(programs()), ["plain.py", "regression.py", "sharded.py", "zero.py"])
        for text, diff in programs().values():
            self.assertIn("\n+", diff)
            ast.parse(text)

    def run_program(self, path, last):
        """Returns the step at which the program started, and its last line."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        done = subprocess.run([PYTHON, path.name, str(last)], cwd=path.parent, capture_output=True, text=True,
                              check=False, timeout=300,
                              env={**os.environ, "HOLDFAST_SOCKET": self.cluster.socket(), "DS_ACCELERATOR": "cpu",
                                   "OMP_NUM_THREADS": "1", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
                                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        weights = re.findall(r"weights [0-9a-f]{64}", done.stdout)
        self.assertEqual(len(weights), 1, done.stdout)
        return int(re.search(r"starts at step (\d+)", done.stdout)[1]), weights[0]

    def migrate(self, name, resumed_before, resumed_after):
        """`resumed_…`: the steps at which a program may continue that has ended after PART steps."""
        text, diff = programs()[name]
        before, after = self.root / "before" / name, self.root / "after" / name
        whole = self.root / "whole" / name
        for path in (before, after, whole):
            path.parent.mkdir()
            path.write_text(text)
        patched = subprocess.run(["patch", "--fuzz=0", after.name], input=diff, cwd=after.parent, capture_output=True,
                                 text=True, check=False)
        self.assertEqual(patched.returncode, 0, patched.stdout + patched.stderr)
        ast.parse(after.read_text())
        module = {"zero.py": "deepspeed", "regression.py": "lightning"}.get(name, "torch")
        finds = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"
        if subprocess.run([PYTHON, "-c", finds], check=False).returncode != 0:
            self.skipTest(f"{module} is not installed: the diff fits, and the program was not run")
        from cluster import Cluster
        self.cluster = Cluster()
        self.addCleanup(self.cluster.stop)
        self.cluster.start()
        _, expected = self.run_program(whole, LAST)
        for path, resumed in ((before, resumed_before), (after, resumed_after)):
            started, part = self.run_program(path, PART)
            self.assertEqual(started, 0, path)
            self.assertNotEqual(part, expected)
            continued, weights = self.run_program(path, LAST)
            self.assertEqual(weights, expected, path)
            # These steps are so short that some are not saved.
            self.assertIn(continued, resumed, path)

    def test_torch_save(self):
        self.migrate("plain.py", [10], range(1, PART + 1))

    def test_distributed_checkpoint(self):
        self.migrate("sharded.py", [10], range(1, PART + 1))

    def test_deepspeed(self):
        self.migrate("zero.py", [10], [10])

    def test_lightning(self):
        self.migrate("regression.py", [10], [10])


def main():
    global PYTHON
    environment, binaries = sys.argv[1:]
    if not (pathlib.Path(environment) / "complete").exists():
        print(f"SKIPPED: there is no {environment}; the test python_environment has the reason")
        return 77
    PYTHON = str(pathlib.Path(environment).resolve() / "bin" / "python")
    os.environ["HOLDFAST_BIN_DIR"] = str(pathlib.Path(binaries).resolve())
    sys.path.insert(0, str(ROOT / "tests" / "python"))
    return 0 if unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
