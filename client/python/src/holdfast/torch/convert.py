"""The Python part of `holdfast import` and `holdfast export --format dcp`.

    python -m holdfast.torch.convert import DIR --job JOB [--step N] [--entry [FROM=]NAME]…
    python -m holdfast.torch.convert to-dcp DIR TARGET

The result is JSON on stdout. An error is one line on stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Sequence

from ..client import Tier
from ..errors import HoldfastError


def _import(arguments: argparse.Namespace) -> dict[str, Any]:
    from . import foreign, importing
    found = foreign.read(arguments.folder)
    renames = []
    for text in arguments.entry:
        source, equals, entry = text.rpartition("=")
        if not entry or "." in entry or (equals and not source):
            raise ValueError(f"--entry {text}: write NAME or FROM=NAME; NAME has no dots")
        renames.append((source, entry))
    what = importing.arrange(found, renames)
    for name, why in found.left_out.items():
        print(f"holdfast: '{name}' is left out, since only unpickling could read it: {why}",
              file=sys.stderr)
    answer: dict[str, Any] = {
        "from": arguments.folder, "job": arguments.job, "tensors": len(what.tensors),
        "bytes": what.bytes, "left_out": sorted(found.left_out), "entries": [
            {"entry": entry, "tensors": sum(name in what.tensors for name in names),
             "bytes": sum(what.tensors[name].bytes for name in names if name in what.tensors)}
            for entry, names in sorted(what.entries().items())[:50]]}
    if not arguments.dry_run:
        options = {"socket_path": arguments.socket} if arguments.socket else {}
        version = importing.save(what, arguments.job, arguments.step,
                                 tier=Tier[arguments.wait.upper()], scratch=arguments.scratch,
                                 **options)
        answer["version"] = str(version)
    return answer


def _to_dcp(arguments: argparse.Namespace) -> dict[str, Any]:
    from . import exporting
    exporting.to_dcp(arguments.folder, arguments.target)
    return {}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="holdfast.torch.convert")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("import")
    command.add_argument("folder")
    command.add_argument("--job", required=True)
    command.add_argument("--step", type=int, default=0)
    command.add_argument("--entry", action="append", default=[])
    command.add_argument("--socket")
    command.add_argument("--wait", choices=["memory", "peer", "disk"], default="memory")
    command.add_argument("--scratch")
    command.add_argument("--dry-run", action="store_true")
    command.set_defaults(run=_import)
    command = commands.add_parser("to-dcp")
    command.add_argument("folder")
    command.add_argument("target")
    command.set_defaults(run=_to_dcp)
    arguments = parser.parse_args(words)
    try:
        json.dump(arguments.run(arguments), sys.stdout)
    except (HoldfastError, ValueError, OSError, TypeError) as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
