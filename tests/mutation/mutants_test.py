#!/usr/bin/env python3
"""Tests the checks of the list, and the texts that replace originals in the copy of the tree."""

import pathlib
import subprocess
import tempfile
import unittest

import mutants


def mutation(**changes):
    entry = {"id": "a", "file": "module/a.cc", "original": "x > 1", "mutated": "false", "breaks": "b",
             "tests": ["t"]}
    return mutants.Mutation(**{**entry, **changes})


class MutantsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name) / "tree"
        (self.root / "module").mkdir(parents=True)
        (self.root / "module/a.cc").write_text("if (x > 1) Go();\nStop();\n")
        (self.root / "module/b.py").write_text("go()\n")

    def problems(self, *mutations):
        return mutants.problems(list(mutations), self.root)

    def test_a_list_that_fits_has_no_problems(self):
        self.assertEqual(self.problems(mutation(), mutation(id="b", original="Stop();", kind="statement")), [])

    def test_entries_that_do_not_fit_are_reported(self):
        for change, words in (({"original": "x > 2"}, "0 times"), ({"original": "o"}, "2 times"),
                              ({"original": "Stop();"}, "is a statement"),
                              ({"file": "module/c.cc"}, "does not exist"), ({"mutated": "x > 1"}, "the same"),
                              ({"kind": "other"}, "kind 'other'"), ({"tests": []}, "names no test"),
                              ({"kind": "raw"}, "without @ON@"),
                              ({"original": "if (x > 1)"}, "not a whole expression"),
                              ({"original": "x >"}, "not a whole expression"),
                              ({"original": "(x > 1"}, "not a whole expression"),
                              ({"original": "(x > 1", "kind": "statement"}, "not a whole statement")):
            with self.subTest(change):
                found = self.problems(mutation(**change))
                self.assertEqual(len(found), 1, found)
                self.assertIn(words, found[0])
        self.assertIn("overlaps", self.problems(mutation(), mutation(id="b", original="(x > 1)"))[0])
        self.assertIn("twice", self.problems(mutation(), mutation(original="Stop()"))[0])

    def test_the_replacement_has_both_texts_behind_the_switch(self):
        on = "::holdfast::mutation::On(7)"
        self.assertEqual(mutants.replacement(mutation(number=7)), f"({on} ? (false) : (x > 1))")
        self.assertEqual(mutants.replacement(
            mutation(kind="statement", original="Go();", mutated=";", number=7)),
                         f"{{ if ({on}) {{ ; }} else {{ Go(); }} }}")
        self.assertEqual(mutants.replacement(mutation(kind="raw", mutated="if (!@ON@)", number=7)), f"if (!{on})")

    def compiles(self, text, bug):
        source = self.root / "module/a.cc"
        source.write_text(mutants.instrumented(text, [bug]))
        subprocess.run(["c++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
                        f"-I{mutants.ROOT}", str(source)], check=True)

    def test_the_statement_of_an_if_compiles_without_warnings(self):
        for rest in ("", " else Stop();"):
            self.compiles(f"void Go(), Stop();\nvoid F(bool x) {{ if (x) Go();{rest} }}\n",
                          mutation(kind="statement", original="Go();", mutated=";", number=7))

    def test_a_bug_in_a_constexpr_function_compiles(self):
        self.compiles("constexpr int F(int x) { return x + 1; }\nstatic_assert(F(1) == 2);\n",
                      mutation(original="x + 1", mutated="x", number=7))

    def test_the_copy_is_written_once_and_follows_the_tree(self):
        subprocess.run(["git", "init", "-q", "."], cwd=self.root, check=True)
        copy = self.root.parent / "copy"
        bugs = [mutation(number=7)]
        self.assertEqual(mutants.write_copy(bugs, copy, self.root), 3)
        text = (copy / "module/a.cc").read_text()
        self.assertIn('#include "tests/mutation/switch.h"', text)
        self.assertIn("On(7) ? (false) : (x > 1)", text)
        self.assertEqual((copy / "module/b.py").read_text(), "go()\n")
        self.assertEqual(mutants.write_copy(bugs, copy, self.root), 0)
        (self.root / "module/b.py").unlink()
        (copy / "build").mkdir()
        (copy / "build/kept").write_text("")
        self.assertEqual(mutants.write_copy(bugs, copy, self.root), 0)
        self.assertFalse((copy / "module/b.py").exists())
        self.assertTrue((copy / "build/kept").exists())
        self.assertEqual((self.root / "module/a.cc").read_text(), "if (x > 1) Go();\nStop();\n")


if __name__ == "__main__":
    unittest.main()
