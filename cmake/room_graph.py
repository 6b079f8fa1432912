#!/usr/bin/env python3
"""Draws the rooms of the source tree, as CMake knows them, into docs/rooms.svg and docs/rooms.md.

  cmake/room_graph.py BUILD_FOLDER           writes both files
  cmake/room_graph.py --check BUILD_FOLDER   exits with 1 when they are out of date
"""

import pathlib
import sys
from html import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLOURS = {"storage": "#dbeafe", "agent": "#dcfce7", "coordinator": "#fef3c7", "client": "#fce7f3",
           "base": "#f1f5f9", "cli": "#ede9fe", "testing": "#ffe4e6", "faults": "#ffedd5", "deploy": "#e5e7eb"}
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 150, 34, 18, 58, 20


def read(build):
    """Room → rooms that it uses."""
    rooms = {}
    for line in (pathlib.Path(build) / "rooms.txt").read_text().splitlines():
        room, _, uses = line.partition(":")
        rooms[room] = sorted(uses.split())
    return rooms


def reachable(rooms, room):
    """All rooms that `room` uses directly or through others."""
    found = set()
    for used in rooms.get(room, []):
        found |= {used} | reachable(rooms, used)
    return found


def reduced(rooms):
    """The graph without edges that a longer path implies."""
    return {room: [used for used in uses
                   if not any(used in reachable(rooms, other) for other in uses if other != used)]
            for room, uses in rooms.items()}


def floors(rooms):
    """Rooms by the length of their longest path downwards."""
    height = {}

    def of(room):
        if room not in height:
            height[room] = 1 + max((of(used) for used in rooms.get(room, [])), default=-1)
        return height[room]

    for room in rooms:
        of(room)
    return [sorted(room for room in rooms if height[room] == floor) for floor in range(max(height.values()) + 1)]


def svg(rooms):
    rows = floors(rooms)
    width = max(len(row) for row in rows) * (BOX_WIDTH + GAP_X) - GAP_X + 2 * MARGIN
    height = len(rows) * (BOX_HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN
    place = {}
    for floor, row in enumerate(rows):
        left = (width - len(row) * (BOX_WIDTH + GAP_X) + GAP_X) / 2
        for column, room in enumerate(row):
            place[room] = (left + column * (BOX_WIDTH + GAP_X),
                           height - MARGIN - BOX_HEIGHT - floor * (BOX_HEIGHT + GAP_Y))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
           'font-family="sans-serif" font-size="13">',
           "<title>Rooms of the source tree: each uses those below it that it has a line to</title>",
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for room, uses in reduced(rooms).items():
        for used in uses:
            x1, y1 = place[room][0] + BOX_WIDTH / 2, place[room][1] + BOX_HEIGHT
            x2, y2 = place[used][0] + BOX_WIDTH / 2, place[used][1]
            middle = (y1 + y2) / 2
            out.append(f'<path d="M{x1} {y1} C{x1} {middle} {x2} {middle} {x2} {y2}" fill="none" '
                       'stroke="#94a3b8"/>')
    for room, (x, y) in place.items():
        out.append(f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" '
                   f'fill="{COLOURS[room.split("/")[0]]}" stroke="#475569"/>')
        out.append(f'<text x="{x + BOX_WIDTH / 2}" y="{y + BOX_HEIGHT / 2 + 4}" text-anchor="middle">'
                   f"{escape(room)}</text>")
    return "\n".join(out + ["</svg>"]) + "\n"


def markdown(rooms):
    lines = ["# Rooms", "",
             "A room is a folder with one subject. Dependencies only point down: the link test of a room fails the",
             "build when the room uses another one that its CMakeLists.txt does not declare. `cmake/room_graph.py`",
             "makes this page from these declarations. The picture leaves out lines that a longer path implies.", "",
             "![Rooms](rooms.svg)", "", "| room | uses |", "|---|---|"]
    for room in sorted(rooms):
        uses = ", ".join(f"[{used}](../{used})" for used in rooms[room])
        lines.append(f"| [{room}](../{room}) | {uses} |")
    return "\n".join(lines) + "\n"


def main():
    check = "--check" in sys.argv[1:]
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 64
    rooms = read(arguments[0])
    outdated = []
    for name, text in (("rooms.svg", svg(rooms)), ("rooms.md", markdown(rooms))):
        path = ROOT / "docs" / name
        if check and (not path.exists() or path.read_text() != text):
            outdated.append(f"docs/{name}")
        elif not check:
            path.write_text(text)
    if outdated:
        print(f"{' and '.join(outdated)}: out of date; run cmake/room_graph.py {arguments[0]}", file=sys.stderr)
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main())
