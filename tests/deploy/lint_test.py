#!/usr/bin/env python3
"""Tests that deploy/lint.py reports defects in each kind of file, and checks again only what has changed."""

import json
import os
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
"""
OLD_STYLE = "struct Square : Shape { int Sides() { return 4; } };\n"
NULL = "int FUNCTION(int x) { int* none = nullptr; return x > 3 ? *none : 0; }\n"
CLEAN = '#include "base/shape.h"\nint FUNCTION() { return 0; }\n'


class LintTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        shutil.copy(ROOT / ".clang-tidy", self.path)
        self.build = self.path / re.search(r"(?m)^build=(\S+)$", (ROOT / "deploy/lint.sh").read_text()).group(1)
        self.entries = []
        self.write("base/shape.h", HEADER)

    def write(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("FUNCTION", path.stem))
        return path

    def unit(self, name, sources, options=""):
        """Writes a unit as CMake does, which includes the sources."""
        unit = self.write(f"build/UnifiedSource/{name}/Unity/unity_0_cxx.cxx",
                          "".join(f'#include "{self.path / source}"\n' for source in sources))
        self.entries.append({"directory": str(self.build), "file": str(unit),
                             "command": f"ccache clang++-14 {options} -I{self.path} -std=c++20 -o x.o -c {unit}"})
        (self.build / "compile_commands.json").write_text(json.dumps(self.entries))

    def lint(self, *arguments):
        """Returns the exit code, the reports, and what lint.py shows of its units."""
        run = subprocess.run([ROOT / "deploy/lint.py", self.build, *arguments], capture_output=True, text=True,
                             env={**os.environ, "HOLDFAST_LINT_ROOT": str(self.path)})
        return run.returncode, run.stdout.replace(f"{self.path}/", ""), run.stderr

    def test_defects_in_a_header_and_in_the_sources_of_a_unit_are_reported(self):
        self.write("base/shape.h", HEADER + OLD_STYLE)
        self.write("base/one.cc", CLEAN + NULL.replace("FUNCTION", "other"))
        self.write("tests/two_test.cc", CLEAN + NULL.replace("FUNCTION", "another"))
        self.unit("base", ["base/one.cc"])
        self.unit("tests", ["tests/two_test.cc"])
        code, reports, _ = self.lint()
        self.assertEqual(code, 1)
        self.assertRegex(reports, r"(?m)^base/shape\.h:3:.*modernize-use-override")
        self.assertRegex(reports, r"(?m)^base/one\.cc:3:.*core\.NullDereference")
        self.assertRegex(reports, r"(?m)^tests/two_test\.cc:3:.*core\.NullDereference")

    def test_a_warning_of_the_compiler_is_reported_and_hides_no_other_defect(self):
        self.write("base/one.cc", CLEAN + NULL.replace("FUNCTION", "other") + "int third() { int x = 1; { int x = 2; "
                   "return x; } return x; }\n")
        self.unit("base", ["base/one.cc"], "-Wshadow -Werror")
        code, reports, _ = self.lint()
        self.assertEqual(code, 1)
        self.assertIn("[clang-diagnostic-shadow", reports)
        self.assertIn("core.NullDereference", reports)

    def test_a_unit_that_passed_is_checked_again_only_when_an_input_has_changed(self):
        self.write("base/one.cc", CLEAN)
        self.unit("base", ["base/one.cc"])
        self.assertEqual(self.lint()[0], 0)
        code, _, shown = self.lint()
        self.assertEqual(code, 0)
        self.assertIn("(1 unchanged", shown)
        self.write("base/shape.h", HEADER + OLD_STYLE)
        self.assertEqual(self.lint()[0], 1)
        # A failure is not recorded.
        self.assertEqual(self.lint()[0], 1)
        self.write("base/shape.h", HEADER)
        self.assertIn("(1 unchanged", self.lint()[2])
        self.write(".clang-tidy", (self.path / ".clang-tidy").read_text().replace("performance-*", "modernize-*"))
        self.assertIn("(0 unchanged", self.lint()[2])

    def test_a_warning_of_the_compiler_can_be_left_out(self):
        self.write("base/one.cc", CLEAN + "struct Base { int a, b; };\nstruct Derived : Base { int c; };\n"
                   "Derived Both() { return {1, 2, 3}; }\n")
        self.unit("base", ["base/one.cc"], "-Wall -Werror")
        code, reports, _ = self.lint()
        self.assertEqual(code, 0, reports)

    def test_sources_with_the_same_name_are_checked_apart(self):
        for name in ("one", "two", "three"):
            self.write(f"base/{name}.cc", CLEAN + "namespace { int Helper() { return 1; } }\n"
                       f"int use_{name}() {{ return Helper(); }}\n")
            self.unit(name, [f"base/{name}.cc"])
        code, reports, shown = self.lint()
        self.assertEqual(code, 0, reports)
        self.assertIn("3 units clean", shown)
        self.assertRegex(shown, r"checked in two parts: .*redefinition of 'Helper'")
        self.assertIn("3 units clean (3 unchanged", self.lint()[2])

    def test_only_the_source_that_repeats_a_name_is_checked_apart(self):
        for name in ("one", "two", "three", "four"):
            helper = "namespace { int Helper() { return 1; } }\n" if name in ("one", "four") else ""
            self.write(f"base/{name}.cc", CLEAN + helper + f"int use_{name}() {{ return 1; }}\n")
        self.unit("base", [f"base/{name}.cc" for name in ("one", "two", "three", "four")])
        code, reports, shown = self.lint()
        self.assertEqual(code, 0, reports)
        self.assertIn("2 units clean", shown)

    def test_a_source_that_does_not_compile_is_reported(self):
        self.write("base/one.cc", CLEAN)
        self.write("base/two.cc", CLEAN + "int broken( {\n")
        self.unit("base", ["base/one.cc", "base/two.cc"])
        code, reports, shown = self.lint()
        self.assertEqual(code, 1)
        self.assertRegex(reports, r"(?m)^base/two\.cc:3:.*clang-diagnostic-error")
        self.assertIn("1 units clean", shown)

    def test_all_sources_are_listed(self):
        self.write("base/one.cc", CLEAN)
        self.write("base/two.cc", CLEAN)
        self.unit("base", ["base/one.cc"])
        self.unit("other", ["base/two.cc"])
        self.assertEqual(self.lint("--sources")[1].split(), ["base/one.cc", "base/two.cc"])


if __name__ == "__main__":
    if not shutil.which("clang-tidy-14"):
        print("SKIPPED: clang-tidy-14 is not installed")
        sys.exit(77)
    unittest.main()
