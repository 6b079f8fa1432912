#!/usr/bin/env python3
"""Tests that clang-tidy with the tree's configuration reports defects in each kind of file that it must check."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

HEADER = """#pragma once
struct Shape { virtual ~Shape() = default; virtual int Sides() = 0; };
struct Square : Shape { int Sides() { return 4; } };
"""
SOURCE = """#include "base/shape.h"
int Source(int x) { int* none = nullptr; return x > 3 ? *none : 0; }
"""


class LintTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        shutil.copy(ROOT / ".clang-tidy", self.path)

    def write(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def reports(self, unit):
        run = subprocess.run(["clang-tidy-14", "--quiet", str(unit), "--", "-std=c++20", f"-I{self.path}"],
                             capture_output=True, text=True)
        self.assertNotEqual(run.returncode, 0, run.stdout + run.stderr)
        return [line.removeprefix(f"{self.path}/") for line in run.stdout.splitlines() if ": error: " in line]

    def test_defects_in_a_header_and_in_the_sources_of_a_unit_are_reported(self):
        self.write("base/shape.h", HEADER)
        source = self.write("base/shape.cc", SOURCE)
        # As CMake writes it: a unit includes several sources.
        folder = re.search(r"(?m)^build=(\S+)$", (ROOT / "deploy/lint.sh").read_text()).group(1)
        unit = self.write(f"{folder}/base/unity_0_cxx.cxx", f'#include "{source}"\n')
        text = "\n".join(self.reports(unit))
        self.assertRegex(text, r"(?m)^base/shape\.h:3:.*modernize-use-override")
        self.assertRegex(text, r"(?m)^base/shape\.cc:2:.*core\.NullDereference")
        self.assertEqual(len(text.splitlines()), 2, text)


if __name__ == "__main__":
    if not shutil.which("clang-tidy-14"):
        print("SKIPPED: clang-tidy-14 is not installed")
        sys.exit(77)
    unittest.main()
