#!/usr/bin/env python3
"""Tests deploy/ctest.py with small ctest folders, and deploy/all.py with parts made for the test."""

import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

SKIPPING = r"""printf '[ RUN      ] Gpu.Copies\n/a/b.cc:12: Skipped\nno GPU is here\n\n[  SKIPPED ] Gpu.Copies (0 ms)\n'
printf 'SKIPPED [2] test_x.py:7: needs two nodes\n'"""


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)


class CtestTest(Folder):
    def ctest(self, tests, flaky=None, *arguments):
        """`tests`: name → shell text. Runs ctest.py over them."""
        lines = []
        for name, text in tests.items():
            script = self.path / f"{name}.sh"
            script.write_text(text)
            lines.append(f'add_test({name} bash "{script}")')
            lines.append(f"set_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77)")
        (self.path / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n")
        options = []
        if flaky is not None:
            (self.path / "flaky.txt").write_text(flaky)
            options = ["--flaky", str(self.path / "flaky.txt")]
        return subprocess.run(
            [sys.executable, "-B", str(ROOT / "deploy/ctest.py"), *options, "--", "--test-dir", str(self.path),
             *arguments], capture_output=True, text=True)

    def summary_is_last(self, run):
        lines = [line for line in run.stdout.splitlines() if line.strip()]
        at = next(i for i, line in enumerate(lines) if re.match(r"\d+% tests passed", line))
        self.assertFalse([line for line in lines[at:] if "Skipped:" in line or "Listed as flaky" in line])

    def test_all_passed(self):
        run = self.ctest({"a": "exit 0", "b": "exit 0"}, "# nothing\n")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("100% tests passed, 0 tests failed out of 2", run.stdout)
        self.assertNotIn("Skipped", run.stdout)
        self.summary_is_last(run)

    def test_one_failure_fails_the_run_even_if_a_retry_would_pass(self):
        once = f'[ -e "{self.path}/again" ] || {{ touch "{self.path}/again"; echo it broke; exit 1; }}'
        run = self.ctest({"a": "exit 0", "b": once}, "", "--output-on-failure")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("it broke", run.stdout)
        self.assertIn("1 tests failed out of 2", run.stdout)
        self.summary_is_last(run)

    def test_a_listed_test_may_fail_and_is_shown(self):
        tests = {"a": "exit 0", "b": "exit 1", "c": "exit 1"}
        run = self.ctest(tests, "b  waits for a clock of the machine\n")
        self.assertNotEqual(run.returncode, 0, "c is not listed")
        run = self.ctest({**tests, "c": "exit 0"}, "b  waits for a clock of the machine\n")
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertIn("b (FAILED): waits for a clock of the machine", run.stdout)
        self.summary_is_last(run)

    def test_a_listed_test_needs_a_reason_and_must_exist(self):
        self.assertNotEqual(self.ctest({"a": "exit 0"}, "a\n").returncode, 0)
        run = self.ctest({"a": "exit 0"}, "removed  it was renamed\n")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("removed", run.stderr)

    def test_skipped_tests_are_counted_with_their_reasons(self):
        run = self.ctest({"a": "echo SKIPPED: there is no root; exit 77", "b": SKIPPING, "c": "exit 0"})
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertIn("Skipped: 3", run.stdout)
        self.assertIn("a: SKIPPED: there is no root", run.stdout)
        self.assertIn("b: Gpu.Copies: no GPU is here", run.stdout)
        self.assertIn("b: test_x.py:7 (2 cases): needs two nodes", run.stdout)
        self.summary_is_last(run)

    def test_output_may_contain_any_bytes(self):
        odd = r"printf '\033[1m\001\377]]>&amp;<a>\n'; "
        run = self.ctest({"a": odd + "exit 1", "b": odd + SKIPPING}, "a  it prints odd bytes\n")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("no GPU is here", run.stdout)

    def test_no_tests_is_a_failure_if_ctest_reports_one(self):
        self.assertNotEqual(self.ctest({"a": "exit 0"}, "", "-R", "nothing", "--no-tests=error").returncode, 0)


class AllTest(Folder):
    def setUp(self):
        super().setUp()
        # A separate repository: all.py identifies its tree by git.
        self.tree = self.path / "tree"
        (self.tree / "deploy").mkdir(parents=True)
        shutil.copy(ROOT / "deploy/all.py", self.tree / "deploy")
        self.git("init", "-q", ".")
        self.commit()

    def git(self, *arguments):
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@example.com", *arguments], cwd=self.tree,
                       check=True)

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x")

    def run_all(self, parts, *arguments):
        return subprocess.run(
            [sys.executable, "-B", str(self.tree / "deploy/all.py"), "--state", str(self.path / "state"), *arguments],
            capture_output=True, text=True, env={**os.environ, "HOLDFAST_TEST_PARTS": json.dumps(parts)})

    def count(self, name):
        path = self.path / name
        return len(path.read_text()) if path.exists() else 0

    def part(self, name, code=0):
        return [name, f"description of {name}", f"printf x >> {self.path}/{name}; exit {code}"]

    def test_a_failed_part_fails_the_run_but_does_not_stop_the_others(self):
        run = self.run_all([self.part("a"), self.part("b", 3), self.part("c")])
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertEqual([self.count(name) for name in "abc"], [1, 1, 1])
        table = run.stdout[run.stdout.index("\nTree "):]
        self.assertRegex(table, r"a +passed +0:0\dm +description of a")
        self.assertRegex(table, r"b +FAILED 3")
        self.assertRegex(table, r"c +passed")

    def test_parts_that_passed_are_not_repeated_and_failed_ones_are(self):
        parts = [self.part("a"), self.part("b", 3)]
        self.run_all(parts)
        run = self.run_all([self.part("a"), self.part("b")])
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertEqual([self.count("a"), self.count("b")], [1, 2])
        self.assertEqual(self.run_all(parts, "--again").returncode, 1)
        self.assertEqual([self.count("a"), self.count("b")], [2, 3])

    def test_parts_that_passed_on_another_tree_are_repeated(self):
        self.run_all([self.part("a")])
        (self.tree / "new").write_text("1")
        self.run_all([self.part("a")])
        self.assertEqual(self.count("a"), 2, "a new file")
        (self.tree / "new").write_text("other bytes")
        self.run_all([self.part("a")])
        self.assertEqual(self.count("a"), 3, "its bytes")
        self.commit()
        self.run_all([self.part("a")])
        self.assertEqual(self.count("a"), 4, "a commit")
        (self.tree / "new").write_text("2")
        self.run_all([self.part("a")])
        self.assertEqual(self.count("a"), 5, "a change")
        self.run_all([self.part("a")])
        self.assertEqual(self.count("a"), 5, "the same again")

    def test_parts_are_chosen_by_name(self):
        run = self.run_all([self.part("a"), self.part("b")], "--only", "b")
        self.assertEqual(run.returncode, 0)
        self.assertEqual([self.count("a"), self.count("b")], [0, 1])
        self.assertRegex(run.stdout, r"a +not run")
        self.assertEqual(self.run_all([self.part("a")], "--only", "x").returncode, 64)

    def test_the_real_list_has_every_part(self):
        listed = subprocess.run([sys.executable, "-B", str(ROOT / "deploy/all.py"), "--list"], capture_output=True,
                                text=True, check=True).stdout
        for name in ("default", "frameworks", "slow-links", "drills", "torn-snapshots", "healthy-training",
                     "network-faults", "lost-nodes", "departures", "fuzz", "tsan", "asan", "checkov", "lint",
                     "mutation"):
            self.assertRegex(listed, rf"(?m)^{name} ")

    def test_the_real_parts_run_cases_that_exist(self):
        found = []
        for name, _, command in parts_of_the_tree():
            for program, suite, case in re.findall(r"/tests/(\w+) --gtest_filter=(\w+)\.(\w+)", command):
                source = (ROOT / f"tests/e2e/{program}.cc").read_text()
                self.assertRegex(source, rf"TEST_F\({suite}, {case}\)", name)
                found.append(name)
        self.assertEqual(found, ["drills", "network-faults", "lost-nodes", "departures"])

    def test_no_real_part_relies_on_a_time_limit_that_ctest_ignores(self):
        # The TIMEOUT of a test has precedence over the option.
        for name, _, command in parts_of_the_tree():
            self.assertNotIn("--timeout", command, name)


def parts_of_the_tree():
    return runpy.run_path(str(ROOT / "deploy/all.py"))["PARTS"]


class TestCommandTest(unittest.TestCase):
    def test_no_command_retries_tests(self):
        self.assertNotIn("--repeat", (ROOT / "deploy/test.sh").read_text())
        self.assertNotIn("--repeat", (ROOT / "deploy/ctest.py").read_text())

    def test_an_unknown_argument_is_a_usage_error(self):
        run = subprocess.run([str(ROOT / "deploy/test.sh"), "--what"], capture_output=True, text=True)
        self.assertEqual(run.returncode, 64)
        self.assertIn("deploy/test.sh --all", run.stderr)


if __name__ == "__main__":
    unittest.main()
