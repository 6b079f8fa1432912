#!/usr/bin/env python3
"""Draws the diagrams of docs/architecture.md from their descriptions: *.seq (messages) and *.boxes (processes).

  docs/diagrams/draw.py           writes an SVG file next to each description
  docs/diagrams/draw.py --check   exits with 1 when a file is out of date, or a name is not in the sources

Sequence: `title TEXT`, `actor ID TEXT`, `A -> B: TEXT` (a message), `A --> B: TEXT` (its answer), `A: TEXT` (work of one
actor), `== TEXT` (a phase). Boxes: `title TEXT`, `frame COLUMN ROW WIDTH HEIGHT TEXT` (a machine),
`box ID COLUMN ROW TEXT | TEXT` (a process, and what it does), `A -- B: TEXT` (how two processes communicate).
Words in backticks are names in the source tree: --check finds each of them there.
"""

import pathlib
import re
import subprocess
import sys
import textwrap
from html import escape

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
CHARACTER, LINE, MARGIN = 7.3, 16, 20
STYLE = """<style>
  svg { font-family: sans-serif; font-size: 13px; }
  .page { fill: #ffffff; } text { fill: #1e293b; } .code { font-family: monospace; font-size: 12px; }
  .box { fill: #dbeafe; stroke: #475569; } .work { fill: #fef3c7; stroke: #a16207; } .frame { fill: none; stroke: #64748b; }
  .life { stroke: #94a3b8; stroke-dasharray: 2 3; } .phase { fill: #f1f5f9; stroke: none; }
  .message { stroke: #1e293b; fill: none; } .answer { stroke-dasharray: 5 3; } .head { fill: #1e293b; }
  .bold { font-weight: bold; } .label { paint-order: stroke; stroke: #ffffff; stroke-width: 5px; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0f172a; } text { fill: #e2e8f0; } .box { fill: #1e3a5f; stroke: #94a3b8; }
    .work { fill: #4a3a12; stroke: #d4a72c; } .frame { stroke: #94a3b8; } .phase { fill: #1e293b; }
    .label { stroke: #0f172a; } .message { stroke: #e2e8f0; } .head { fill: #e2e8f0; } .life { stroke: #64748b; }
  }
</style>
<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>"""


def width_of(text):
    return max(len(line.replace("`", "")) for line in text.split("\n")) * CHARACTER


def wrap(text, characters):
    return textwrap.wrap(text, characters, break_long_words=False, break_on_hyphens=False)


def rich(line):
    """Names in monospace."""
    parts = line.split("`")
    return "".join(f'<tspan class="code">{escape(part)}</tspan>' if i % 2 else escape(part)
                   for i, part in enumerate(parts))


def balanced(lines):
    """Closes and opens backticks at the ends of lines."""
    is_open = False
    for i, line in enumerate(lines):
        lines[i] = ("`" if is_open else "") + line
        is_open = lines[i].count("`") % 2 == 1
        lines[i] += "`" if is_open else ""
    return lines


def text_at(x, y, lines, anchor="middle", style=""):
    kind = f' class="{style}"' if style else ""
    return [f'<text x="{x:.0f}" y="{y + i * LINE:.0f}" text-anchor="{anchor}"{kind}>{rich(line)}</text>'
            for i, line in enumerate(lines)]


def page(title, width, height, body):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img">', f"<title>{escape(title)}</title>", STYLE,
        f'<rect class="page" width="{width:.0f}" height="{height:.0f}"/>', *body, "</svg>"]) + "\n"


def lines_of(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield f"{path.name}:{number}", line.strip()


def sequence(path):
    title, actors, steps = "", [], []
    for place, line in lines_of(path):
        if match := re.fullmatch(r"title (.+)", line):
            title = match[1]
        elif match := re.fullmatch(r"actor (\w+) (.+)", line):
            actors.append((match[1], match[2]))
        elif match := re.fullmatch(r"== (.+)", line):
            steps.append(("phase", None, None, [match[1]]))
        elif match := re.fullmatch(r"(\w+) --> (\w+): (.+)", line):
            steps.append(("answer", match[1], match[2], balanced(wrap(match[3], 38))))
        elif match := re.fullmatch(r"(\w+) -> (\w+): (.+)", line):
            steps.append(("message", match[1], match[2], balanced(wrap(match[3], 38))))
        elif match := re.fullmatch(r"(\w+): (.+)", line):
            steps.append(("work", match[1], match[1], balanced(wrap(match[2], 30))))
        else:
            raise SystemExit(f"{place}: not understood: {line}")
    index = {name: i for i, (name, _) in enumerate(actors)}
    # Columns are as far apart as the widest text between them needs.
    x = [MARGIN + max(width_of(actors[0][1]) / 2 + 14, 40)]
    right = 0
    for column in range(1, len(actors) + 1):
        names = [width_of(name) / 2 + 16 for _, name in actors[column - 1:column + 1]]
        least = x[-1] + max(120, sum(names))
        for kind, source, target, lines in steps:
            if kind == "phase":
                continue
            a, b = sorted((index[source], index[target]))
            need = max(width_of(line) for line in lines) + 30
            if kind == "work" and a == column - 1:
                least = max(least, x[a] + need + 24)
            elif kind != "work" and b == column:
                least = max(least, x[a] + need)
        if column < len(actors):
            x.append(least)
        else:
            right = least
    # The space after the last column is only for the work of the last actor.
    last_work = any(kind == "work" and source == actors[-1][0] for kind, source, _, _ in steps)
    width = (right if last_work else x[-1] + width_of(actors[-1][1]) / 2 + 20) + MARGIN
    width = max(width, width_of(title) * 1.1 + 2 * MARGIN)
    body, y = [], 78
    for kind, source, target, lines in steps:
        if kind == "phase":
            body.append(f'<rect class="phase" x="{MARGIN}" y="{y}" width="{width - 2 * MARGIN:.0f}" height="24"/>')
            body += text_at(MARGIN + 10, y + 16, lines, "start", "bold")
            y += 36
        elif kind == "work":
            left, high = x[index[source]] + 8, len(lines) * LINE + 8
            wide = max(width_of(line) for line in lines) + 14
            body.append(f'<rect class="work" x="{left:.0f}" y="{y}" width="{wide:.0f}" height="{high}" rx="3"/>')
            body += text_at(left + 7, y + 16, lines, "start")
            y += high + 12
        else:
            start, end = x[index[source]], x[index[target]]
            y += len(lines) * LINE
            body += text_at((start + end) / 2, y - (len(lines) - 1) * LINE - 5, lines, style="label")
            style = "message answer" if kind == "answer" else "message"
            body.append(f'<path class="{style}" d="M{start:.0f} {y}H{end:.0f}" marker-end="url(#arrow)"/>')
            y += 14
    height = y + MARGIN
    out = text_at(MARGIN, 26, [title], "start", "bold")
    for (_, name), at in zip(actors, x):
        wide = width_of(name) + 20
        out.append(f'<path class="life" d="M{at:.0f} 66V{height - 10}"/>')
        out.append(f'<rect class="box" x="{at - wide / 2:.0f}" y="40" width="{wide:.0f}" height="26" rx="4"/>')
        out += text_at(at, 57, [name])
    return page(title, width, height, out + body)


CELL_WIDTH, CELL_HEIGHT, BOX_WIDTH, BOX_HEIGHT = 270, 120, 176, 64


def boxes(path):
    title, frames, nodes, links = "", [], {}, []
    for place, line in lines_of(path):
        if match := re.fullmatch(r"title (.+)", line):
            title = match[1]
        elif match := re.fullmatch(r"frame (\S+) (\S+) (\S+) (\S+) (.+)", line):
            frames.append((*map(float, match.groups()[:4]), match[5]))
        elif match := re.fullmatch(r"box (\w+) (\S+) (\S+) ([^|]+) \| (.+)", line):
            nodes[match[1]] = (float(match[2]), float(match[3]), match[4], match[5])
        elif match := re.fullmatch(r"(\w+) -- (\w+): (.+)", line):
            links.append((match[1], match[2], match[3]))
        else:
            raise SystemExit(f"{place}: not understood: {line}")

    def corner(column, row):
        return MARGIN + 20 + column * CELL_WIDTH, 66 + row * CELL_HEIGHT

    width = max(corner(c + w, 0)[0] - 50 for c, _, w, _, _ in frames) + MARGIN
    height = max(corner(0, r + h)[1] - 36 for _, r, _, h, _ in frames) + MARGIN
    out = text_at(MARGIN, 26, [title], "start", "bold")
    for column, row, wide, high, name in frames:
        left, top = corner(column, row)
        out.append(f'<rect class="frame" x="{left - 20:.0f}" y="{top - 22:.0f}" width="{wide * CELL_WIDTH - 30:.0f}" '
                   f'height="{high * CELL_HEIGHT - 14:.0f}" rx="8"/>')
        out += text_at(left - 10, top - 5, [name], "start", "bold")
    labels = []
    for first, second, label in links:
        (x1, y1), (x2, y2) = (corner(*nodes[name][:2]) for name in (first, second))
        if x1 == x2:
            upper, lower = sorted((y1, y2))
            middle = x1 + BOX_WIDTH / 2
            ends = (middle, upper + BOX_HEIGHT + 6, middle, lower + 6)
            labels += text_at(middle + 6, (ends[1] + ends[3]) / 2 + 4, [label], "start", "label")
        else:
            (left, at), (right, to) = sorted(((x1, y1), (x2, y2)))
            ends = (left + BOX_WIDTH, at + 6 + BOX_HEIGHT / 2, right, to + 6 + BOX_HEIGHT / 2)
            lines = balanced(wrap(label, 22))
            labels += text_at((ends[0] + ends[2]) / 2, (ends[1] + ends[3]) / 2 - 6 - (len(lines) - 1) * LINE, lines,
                              style="label")
        out.append('<path class="message" d="M{:.0f} {:.0f}L{:.0f} {:.0f}" marker-end="url(#arrow)" '
                   'marker-start="url(#back)"/>'.format(*ends))
    for column, row, name, what in nodes.values():
        left, top = corner(column, row)
        out.append(f'<rect class="box" x="{left:.0f}" y="{top + 6:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5"/>')
        out += text_at(left + BOX_WIDTH / 2, top + 24, [name], style="bold")
        out += text_at(left + BOX_WIDTH / 2, top + 41, balanced(wrap(what, 24)))
    return page(title, width, height, out + labels).replace(
        "</defs>", '<marker id="back" viewBox="0 0 8 8" refX="1" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="head" d="M8 0L0 4L8 8z"/></marker></defs>')


def unknown_names(path, words):
    names = set(re.findall(r"`([^`]+)`", path.read_text()))
    return sorted(name for name in names if not set(re.findall(r"[A-Za-z_]\w*", name)) <= words)


def source_words():
    """Every word of the sources that describe interfaces and code."""
    files = subprocess.run(["git", "-C", ROOT, "ls-files", "*.h", "*.cc", "*.proto"], check=True, capture_output=True,
                           text=True).stdout.split()
    words = set()
    for file in files:
        if not file.startswith("tests/"):
            words |= set(re.findall(r"[A-Za-z_]\w*", (ROOT / file).read_text()))
    return words


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        print(__doc__, file=sys.stderr)
        return 64
    words = source_words() if check else set()
    wrong = []
    for path in sorted(FOLDER.glob("*.seq")) + sorted(FOLDER.glob("*.boxes")):
        picture = sequence(path) if path.suffix == ".seq" else boxes(path)
        target = path.with_suffix(".svg")
        if not check:
            target.write_text(picture)
            continue
        if not target.exists() or target.read_text() != picture:
            wrong.append(f"{target.relative_to(ROOT)}: out of date; run docs/diagrams/draw.py")
        wrong += [f"{path.relative_to(ROOT)}: the sources have no `{name}`" for name in unknown_names(path, words)]
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
