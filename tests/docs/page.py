"""Runs the commands of a Markdown page as a reader would, and compares their output with the page.

The word after the language of a fenced block decides what happens with the block:

| block | meaning |
|---|---|
| `sh run` | the commands run in the shell of the machine, one after another; each must succeed |
| `sh run=NAME` | the same on the machine NAME; `sh run=A,B`: on several, `sh run=all`: on each machine |
| `text shows` | the output of the block above has these lines in this order; `…` stands for any text in a line |
| `LANGUAGE file=PATH` | becomes the file PATH of the machine; `file=NAME:PATH` and `file=all:PATH` name machines |
| `LANGUAGE not-run` | is only read; the text around the block gives the reason |
| anything else | an error: the page has a block that no test runs |
"""

import pathlib
import re
from dataclasses import dataclass

FENCE = re.compile(r"^( *)(`{3,})(\S*) *(.*?)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    mark: str
    text: str
    place: str  # file:line, for messages


def read(path: pathlib.Path) -> list[Block]:
    """Returns the fenced blocks of a page."""
    text = path.read_text()
    blocks = []
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        indent, contents = found[1], found[5]
        contents = "".join(row.removeprefix(indent) for row in contents.splitlines(keepends=True))
        blocks.append(Block(found[3], found[4], contents, f"{path.name}:{line}"))
    return blocks


def compare(expected: str, output: str, place: str) -> None:
    """Raises AssertionError unless the output has the expected lines in their order."""
    rows = iter(output.splitlines())
    for line in filter(str.strip, expected.splitlines()):
        pattern = ".*".join(re.escape(" ".join(part.split())) for part in line.split("…"))
        if not any(re.fullmatch(pattern.strip(), " ".join(row.split())) for row in rows):
            raise AssertionError(f"{place}: the output has no further line like\n  {line}\nIt is\n{output}")


def run(path: pathlib.Path, machines: dict) -> int:
    """Runs the page on the machines, by name, and returns the number of blocks that ran. The first machine is the
    one of blocks that name none."""
    first = next(iter(machines))
    output, count = None, 0

    def chosen(name):
        if name == "all":
            return list(machines.values())
        return [machines[one] for one in (name or first).split(",")]

    for block in read(path):
        kind, _, value = block.mark.partition("=")
        if kind == "run":
            output = "".join(machine.run(block.text, block.place) for machine in chosen(value))
            print(f"{block.place}: {block.text}{output}", flush=True)
            for machine in machines.values():
                machine.deliver()
        elif kind == "shows":
            if output is None:
                raise AssertionError(f"{block.place}: no block above this one has run")
            compare(block.text, output, block.place)
        elif kind == "file":
            name, colon, target = value.rpartition(":")
            for machine in chosen(name if colon else ""):
                machine.write(target, block.text, block.place)
        elif kind.split()[:1] != ["not-run"]:
            raise AssertionError(f"{block.place}: the block is marked '{block.mark}'; see tests/docs/page.py")
        count += kind in ("run", "shows", "file")
    if count == 0:
        raise AssertionError(f"{path.name}: nothing was run")
    return count
