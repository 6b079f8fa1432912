"""The list of planted bugs (lists/*.toml), and a copy of the tree with all of them behind one switch."""

import dataclasses
import json
import pathlib
import re
import subprocess
import tomllib
import zlib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LISTS = HERE / "lists"
# The CMake files of the copy check for this file: a tree without it has no planted bugs.
MARKER = "mutations.json"
COMPILED = {".cc", ".h", ".c", ".hpp"}
# For an expression or a statement, the switch selects between both texts. Raw text contains the switch as @ON@.
KINDS = {"expression", "statement", "raw"}
PACKAGE = "client/python/src/"
BRACKETS = {"(": ")", "[": "]", "{": "}"}
LITERAL = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'')
FRAGMENT = re.compile(r"^(?:(?:if|for|while|return|else)\b|&&|\|\|)|(?:&&|\|\||[-+*/=<>?:,])$")


@dataclasses.dataclass
class Mutation:
    """One bug: `original`, which occurs once in `file`, becomes `mutated`, and one of `tests` must fail."""

    id: str
    file: str
    original: str
    mutated: str
    breaks: str
    tests: list
    kind: str = "expression"
    argued: str = ""  # why no test can detect it; counts as explained, not as caught
    number: int = 0

    @property
    def compiled(self):
        return pathlib.Path(self.file).suffix in COMPILED

    @property
    def in_package(self):
        return self.file.startswith(PACKAGE)


def load(lists=LISTS):
    """Returns all mutations. Numbers derive from IDs, so that new entries do not recompile the files of others."""
    found = []
    for path in sorted(lists.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutation"]:
            number = zlib.crc32(entry["id"].encode()) % 1_000_000_007 + 1
            found.append(Mutation(**entry, number=number))
    return found


def is_balanced(text):
    """Returns whether each bracket in the text has its counterpart there."""
    expected = []
    for char in LITERAL.sub("", text):
        if char in BRACKETS:
            expected.append(BRACKETS[char])
        elif char in BRACKETS.values() and (not expected or expected.pop() != char):
            return False
    return not expected


def problems(mutations, root=ROOT):
    """Returns the problems of the list, one sentence each."""
    wrong = []
    seen = set()
    numbers = set()
    spans = {}
    for one in mutations:
        report = lambda text, one=one: wrong.append(f"{one.id}: {text}")
        if one.id in seen:
            report("this ID occurs twice")
        seen.add(one.id)
        if one.number in numbers:
            report("another bug has the same number: choose another ID")
        if one.number:
            numbers.add(one.number)
        if one.kind not in KINDS:
            report(f"kind '{one.kind}' is not one of {', '.join(sorted(KINDS))}")
        if one.compiled and one.kind == "raw" and "@ON@" not in one.mutated:
            report("raw text without @ON@ is always active: add @ON@")
        if one.compiled and one.kind == "expression" and one.original.rstrip().endswith(";"):
            report("the original is a statement: use kind = \"statement\"")
        if one.compiled and one.kind in ("expression", "statement"):
            whole = all(is_balanced(text) for text in (one.original, one.mutated))
            if one.kind == "expression":
                whole = whole and not any(FRAGMENT.search(text.strip()) for text in (one.original, one.mutated))
            if not whole:
                report(f"it is not a whole {one.kind}, and the copy would not compile: use kind = \"raw\" with @ON@")
        if one.original == one.mutated:
            report("original and mutated are the same")
        if not one.tests and not one.argued:
            report("it names no test and has no argument")
        path = root / one.file
        if not path.is_file():
            report(f"{one.file} does not exist")
            continue
        text = path.read_text()
        count = text.count(one.original)
        if count != 1:
            report(f"the original text occurs {count} times in {one.file}, not once")
            continue
        begin = text.index(one.original)
        end = begin + len(one.original)
        for other_begin, other_end, other in spans.setdefault(one.file, []):
            if begin < other_end and other_begin < end:
                report(f"its place overlaps with that of {other}")
        spans[one.file].append((begin, end, one.id))
    return wrong


def replacement(one):
    """Returns the text with both alternatives behind the switch."""
    on = f"::holdfast::mutation::On({one.number})"
    if one.kind == "raw":
        return one.mutated.replace("@ON@", on)
    if one.kind == "statement":
        # In separate braces, because the statement may be the body of an `if`.
        return f"{{ if ({on}) {{ {one.mutated} }} else {{ {one.original} }} }}"
    return f"({on} ? ({one.mutated}) : ({one.original}))"


def instrumented(text, mutations):
    """Returns `text` of a compiled file with all of its bugs."""
    for one in mutations:
        text = text.replace(one.original, replacement(one), 1)
    return '#include "tests/mutation/switch.h"\n' + text


def files_of(root):
    """Returns the relative paths of all files that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, capture_output=True).stdout
    return sorted({name for name in listed.decode().split("\0") if name and (root / name).is_file()})


def write_copy(mutations, into, root=ROOT):
    """Makes or updates the copy; unchanged files keep their times. Returns the number of files written."""
    by_file = {}
    for one in mutations:
        if one.compiled:
            by_file.setdefault(one.file, []).append(one)
    wanted = {MARKER: json.dumps({one.id: one.number for one in mutations}, indent=1).encode()}
    modes = {}
    for name in files_of(root):
        source = root / name
        content = source.read_bytes()
        if name in by_file:
            content = instrumented(content.decode(), by_file[name]).encode()
        wanted[name] = content
        modes[name] = source.stat().st_mode & 0o777
    written = 0
    for name, content in wanted.items():
        target = into / name
        if target.is_file() and target.read_bytes() == content:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(modes.get(name, 0o644))
        written += 1
    for path in list(into.rglob("*")):
        name = path.relative_to(into).as_posix()
        if path.is_file() and name not in wanted and not name.startswith("build/"):
            path.unlink()
    return written
