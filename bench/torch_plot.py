"""The plot of bench/torch_bench.py, and the update of a page with it."""

from __future__ import annotations

import pathlib
import re

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
matplotlib.rcParams["svg.hashsalt"] = "holdfast"

import matplotlib.pyplot as plt  # noqa: E402

PANELS = (("blocked_s", "loop blocked per save (s)", True),
          ("durable_s", "until durable (s; dotted: fio)", False),
          ("restore_s", "restore (s)", False),
          ("slowdown", "step time, saving every step (×)", False))


def draw(results, path):
    figure, axes = plt.subplots(len(results), len(PANELS), figsize=(13, 2.6 * len(results)),
                                squeeze=False)
    for row, (world, result) in zip(axes, results.items()):
        names = list(result["ways"])[::-1]
        for axis, (key, title, logarithmic) in zip(row, PANELS):
            values = [result["ways"][name][key] for name in names]
            colours = ["#c1440e" if name == "Holdfast" else "#8a9ba8" for name in names]
            axis.barh(names, values, color=colours)
            axis.set_title(title, fontsize=9)
            axis.tick_params(labelsize=8)
            if logarithmic:
                axis.set_xscale("log")
            for index, value in enumerate(values):
                axis.annotate(f" {value:.2g}", (value, index), va="center", fontsize=7)
            if key == "durable_s" and result["disk_s"]:
                axis.axvline(result["disk_s"], color="#333333", linestyle=":", linewidth=1)
            axis.margins(x=0.2)
            axis.spines[["top", "right"]].set_visible(False)
            if axis is not row[0]:
                axis.set_yticklabels([])
        row[0].set_ylabel(f"{world} rank{'s' if world > 1 else ''}, "
                          f"{result['bytes'] / 1e9:.1f} GB", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def renew(page: pathlib.Path, text, results):
    """Puts the table between the page's marks, and writes the plot into the page's folder."""
    draw(results, page.with_name("torch.svg"))
    marked = re.compile(r"(<!-- torch -->\n).*(<!-- end of torch -->)", re.DOTALL)
    whole = page.read_text()
    if not marked.search(whole):
        raise SystemExit(f"{page} has no lines <!-- torch --> and <!-- end of torch -->")
    body = f"\n{text}\n\n![Ways of saving, compared](torch.svg)\n\n"
    page.write_text(marked.sub(lambda found: found[1] + body + found[2], whole))
