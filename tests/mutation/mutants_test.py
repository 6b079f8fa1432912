#!/usr/bin/env python3
"""The list's own checks, and what the copy of the tree says in place of an original."""

import pathlib
import subprocess
import tempfile
import unittest

import mutants


def mutation(**changes):
    entry = {"id": "a", "file": "room/a.cc", "original": "x > 1", "mutated": "false", "breaks": "b",
             "tests": ["t"]}
    return mutants.Mutation(**{**entry, **changes})


class MutantsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name) / "tree"
        (self.root / "room").mkdir(parents=True)
        (self.root / "room/a.cc").write_text("if (x > 1) Go();\nStop();\n")
        (self.root / "room/b.py").write_text("go()\n")

    def problems(self, *mutations):
        return mutants.problems(list(mutations), self.root)

    def test_a_list_that_fits_has_no_problems(self):
        self.assertEqual(self.problems(mutation(), mutation(id="b", original="Stop();", kind="statement")), [])

    def test_what_does_not_fit_is_named(self):
        for change, words in (({"original": "x > 2"}, "0 times"), ({"original": "o"}, "2 times"),
                              ({"original": "Stop();"}, "is a statement"),
                              ({"file": "room/c.cc"}, "is not there"), ({"mutated": "x > 1"}, "the same"),
                              ({"kind": "other"}, "kind 'other'"), ({"tests": []}, "names no test"),
                              ({"kind": "raw"}, "without @ON@")):
            with self.subTest(change):
                found = self.problems(mutation(**change))
                self.assertEqual(len(found), 1, found)
                self.assertIn(words, found[0])
        self.assertIn("overlaps", self.problems(mutation(), mutation(id="b", original="(x > 1)"))[0])
        self.assertIn("twice", self.problems(mutation(), mutation(original="Stop()"))[0])

    def test_both_texts_are_there_behind_the_switch(self):
        on = "::holdfast::mutation::On(7)"
        self.assertEqual(mutants.replacement(mutation(number=7)), f"({on} ? (false) : (x > 1))")
        self.assertEqual(mutants.replacement(
            mutation(kind="statement", original="Go();", mutated=";", number=7)),
                         f"if ({on}) {{ ; }} else {{ Go(); }}")
        self.assertEqual(mutants.replacement(mutation(kind="raw", mutated="if (!@ON@)", number=7)), f"if (!{on})")

    def test_the_copy_is_written_once_and_follows_the_tree(self):
        subprocess.run(["git", "init", "-q", "."], cwd=self.root, check=True)
        copy = self.root.parent / "copy"
        bugs = [mutation(number=7)]
        self.assertEqual(mutants.write_copy(bugs, copy, self.root), 3)
        text = (copy / "room/a.cc").read_text()
        self.assertIn('#include "tests/mutation/switch.h"', text)
        self.assertIn("On(7) ? (false) : (x > 1)", text)
        self.assertEqual((copy / "room/b.py").read_text(), "go()\n")
        self.assertEqual(mutants.write_copy(bugs, copy, self.root), 0)
        (self.root / "room/b.py").unlink()
        (copy / "build").mkdir()
        (copy / "build/kept").write_text("")
        self.assertEqual(mutants.write_copy(bugs, copy, self.root), 0)
        self.assertFalse((copy / "room/b.py").exists())
        self.assertTrue((copy / "build/kept").exists())
        self.assertEqual((self.root / "room/a.cc").read_text(), "if (x > 1) Go();\nStop();\n")


if __name__ == "__main__":
    unittest.main()
