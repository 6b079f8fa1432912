"""The list of planted bugs (lists/*.toml), and a copy of the tree that has all of them behind one switch."""

import dataclasses
import json
import pathlib
import subprocess
import tomllib
import zlib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LISTS = HERE / "lists"
# What the copy's CMake files ask for: a tree without it has no bugs to switch on.
MARKER = "mutations.json"
COMPILED = {".cc", ".h", ".c", ".hpp"}
# An expression or statement is chosen against the original; raw text says itself where, by @ON@.
KINDS = {"expression", "statement", "raw"}
PACKAGE = "client/python/src/"


@dataclasses.dataclass
class Mutation:
    """One bug: `original`, which is once in `file`, becomes `mutated`, and one of `tests` must fail."""

    id: str
    file: str
    original: str
    mutated: str
    breaks: str
    tests: list
    kind: str = "expression"
    argued: str = ""  # why no test can see it; counts as explained, not as caught
    number: int = 0

    @property
    def compiled(self):
        return pathlib.Path(self.file).suffix in COMPILED

    @property
    def in_package(self):
        return self.file.startswith(PACKAGE)


def load(lists=LISTS):
    """All mutations. A number follows from the ID, so that a longer list compiles nothing anew that was there."""
    found = []
    for path in sorted(lists.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutation"]:
            number = zlib.crc32(entry["id"].encode()) % 1_000_000_007 + 1
            found.append(Mutation(**entry, number=number))
    return found


def problems(mutations, root=ROOT):
    """What is wrong with the list, one sentence each."""
    wrong = []
    seen = set()
    numbers = set()
    spans = {}
    for one in mutations:
        say = lambda text, one=one: wrong.append(f"{one.id}: {text}")
        if one.id in seen:
            say("this ID is there twice")
        seen.add(one.id)
        if one.number in numbers:
            say("another bug has the same number: choose another ID")
        if one.number:
            numbers.add(one.number)
        if one.kind not in KINDS:
            say(f"kind '{one.kind}' is none of {', '.join(sorted(KINDS))}")
        if one.compiled and one.kind == "raw" and "@ON@" not in one.mutated:
            say("raw text without @ON@ is there always")
        if one.compiled and one.kind == "expression" and one.original.rstrip().endswith(";"):
            say("the original is a statement: kind = \"statement\"")
        if one.original == one.mutated:
            say("original and mutated are the same")
        if not one.tests and not one.argued:
            say("it names no test and argues nothing")
        path = root / one.file
        if not path.is_file():
            say(f"{one.file} is not there")
            continue
        text = path.read_text()
        count = text.count(one.original)
        if count != 1:
            say(f"the original text is {count} times in {one.file}, not once")
            continue
        begin = text.index(one.original)
        end = begin + len(one.original)
        for other_begin, other_end, other in spans.setdefault(one.file, []):
            if begin < other_end and other_begin < end:
                say(f"its place overlaps with that of {other}")
        spans[one.file].append((begin, end, one.id))
    return wrong


def replacement(one):
    """The text that has both, behind the switch."""
    on = f"::holdfast::mutation::On({one.number})"
    if one.kind == "raw":
        return one.mutated.replace("@ON@", on)
    if one.kind == "statement":
        return f"if ({on}) {{ {one.mutated} }} else {{ {one.original} }}"
    return f"({on} ? ({one.mutated}) : ({one.original}))"


def instrumented(text, mutations):
    """`text` of a compiled file with all of its bugs in it."""
    for one in mutations:
        text = text.replace(one.original, replacement(one), 1)
    return '#include "tests/mutation/switch.h"\n' + text


def files_of(root):
    """Relative paths of everything that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, capture_output=True).stdout
    return sorted({name for name in listed.decode().split("\0") if name and (root / name).is_file()})


def write_copy(mutations, into, root=ROOT):
    """Makes or refreshes the copy; files that stay the same keep their times. Number of files written."""
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
