#!/usr/bin/env python3
"""Tests the reader of pages: what is wrong in a page must fail."""

import pathlib
import subprocess
import tempfile
import unittest

import page

GOOD = """
# Page

```sh run
echo one; echo two   words 12
echo three
```

```text shows
two words …
three
```

```sh run=first,other
pwd
```

```text shows
…/first
…/other
```

1. Indented:

   ```text file=all:here
   contents
     and more
   ```
"""


class Shell:
    """A folder as a machine, without the isolation of a real one."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def run(self, text, place):
        done = subprocess.run(["bash", "-ec", text], cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{place}: {done.stderr}")
        return done.stdout

    def deliver(self):
        pass

    def write(self, path, text, place):
        (self.folder / path).write_text(text)


class PageTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.machines = {}
        for name in ("first", "other"):
            (self.root / name).mkdir()
            self.machines[name] = Shell(self.root / name)

    def run_page(self, text):
        path = self.root / "page.md"
        path.write_text(text)
        return page.run(path, self.machines)

    def test_a_good_page(self):
        self.assertEqual(self.run_page(GOOD), 5)
        for name in self.machines:
            self.assertEqual((self.root / name / "here").read_text(), "contents\n  and more\n")

    def test_what_must_fail(self):
        for wrong, right, message in (("echo two ", "echo 2 ", "no further line like"),
                                      ("two words …\nthree", "three\ntwo words …", "no further line like"),
                                      ("echo three", "false", "page.md:4"),
                                      ("sh run=first,other", "sh", "is marked ''"),
                                      ("sh run=first,other", "sh runs", "is marked 'runs'"),
                                      ("sh run\n", "sh not-run\n", "no block above"),
                                      ("all:here", "here", "")):
            changed = GOOD.replace(wrong, right)
            self.assertNotEqual(changed, GOOD)
            if message:
                with self.assertRaisesRegex(AssertionError, message):
                    self.run_page(changed)
        with self.assertRaisesRegex(AssertionError, "nothing was run"):
            self.run_page("text without blocks")
        with self.assertRaises(KeyError):
            self.run_page(GOOD.replace("first,other", "first,nowhere"))


if __name__ == "__main__":
    unittest.main()
