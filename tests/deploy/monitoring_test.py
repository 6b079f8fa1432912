#!/usr/bin/env python3
"""Tests what Holdfast ships for monitoring, without a running cluster: rules, their tests, runbook and board."""

import json
import pathlib
import re
import shutil
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RULES = ROOT / "deploy/prometheus/holdfast.rules.yml"
RULE_TESTS = ROOT / "deploy/prometheus/holdfast.test.yml"


def text(path):
    return (ROOT / path).read_text()


def codes():
    """The health codes in the sources: quoted words of capitals."""
    sources = text("coordinator/view/health.cc") + text("coordinator/api/node_warning.cc")
    return {code for code in re.findall(r'"([A-Z]+(?:_[A-Z]+)*)"', sources) if not code.startswith("HOLDFAST")}


def sections():
    """Anchor → lines of the section, as GitHub makes anchors."""
    found = {}
    for part in re.split(r"^## ", text("docs/runbook.md"), flags=re.M)[1:]:
        heading, _, body = part.partition("\n")
        found[re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")] = (heading, body)
    return found


def alerts():
    """Name → the lines of the alert."""
    return {part.split("\n", 1)[0].strip(): part for part in text(RULES).split("- alert: ")[1:]}


def metrics_in(expressions):
    return set(re.findall(r"\b(?:[a-z_]+:)?holdfast_[a-z0-9_]+(?::[a-z0-9_]+)?\b", expressions))


class Runbook(unittest.TestCase):
    def test_has_each_code_once(self):
        headings = [heading for heading, _ in sections().values() if heading.isupper()]
        self.assertEqual(sorted(headings), sorted(codes()))
        self.assertTrue({"NODE_DOWN", "DISK_FULL", "DISPUTED"} <= codes())

    def test_the_documented_codes_are_the_same(self):
        table = text("docs/cli.md").split("| code | level | meaning |", 1)[1].split("\n\n", 1)[0]
        documented = set()
        for line in table.splitlines()[2:]:
            documented |= set(re.findall(r"`([A-Z_]+)`", line.split("|")[1]))
        self.assertEqual(documented, codes())

    def test_each_section_has_meaning_action_and_command(self):
        for heading, body in sections().values():
            for part in ("**Meaning.** ", "**Do.** ", "```\n"):
                self.assertIn(part, body, heading)


class Rules(unittest.TestCase):
    def test_each_alert_fires_because_of_a_real_fault(self):
        names = r'"(Holdfast\w+)"'
        faults = set(re.findall(names, text("tests/e2e/alerts_test.py").split("SCENES = {", 1)[1]))
        faults |= set(re.findall(names, re.search(r"EXPECTED = \[[^]]*]", text("tests/e2e/monitoring_test.py"))[0]))
        # A page with more than 10,000 series needs as many jobs. A unit test of the page has them.
        self.assertEqual(faults | {"HoldfastSeriesDropped"}, set(alerts()))

    def test_each_alert_leads_to_its_section(self):
        self.assertGreater(len(alerts()), 25)
        linked = set()
        for name, rule in alerts().items():
            anchor = re.search(r"runbook_url: docs/runbook\.md#(\S+)", rule)
            self.assertIsNotNone(anchor, name)
            self.assertIn(anchor[1], sections(), name)
            linked.add(anchor[1])
            code = re.search(r"code: (\w+)\n", rule.split("labels:")[-1])
            if code:
                self.assertEqual(code[1].lower(), anchor[1], name)
            for key in ("severity: ", 'summary: "', 'description: "'):
                self.assertIn(key, rule, name)
        # This finding ends after 5 s.
        self.assertEqual(linked | {"attaching"}, set(sections()), "each section has an alert")

    def test_each_alert_has_a_test_in_which_it_fires(self):
        fired = set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n +- exp_labels", text(RULE_TESTS)))
        self.assertEqual(fired, set(alerts()))

    @unittest.skipUnless(shutil.which("promtool"), "promtool (package prometheus) is not installed")
    def test_promtool_accepts_them(self):
        for arguments in (["check", "rules", "--lint-fatal", RULES.name], ["test", "rules", RULE_TESTS.name]):
            ran = subprocess.run(["promtool", *arguments], cwd=RULES.parent, capture_output=True, text=True)
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)


class Board(unittest.TestCase):
    board = json.loads(text("deploy/grafana/holdfast.json"))

    def test_panels_are_complete(self):
        panels = self.board["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        taken = set()
        for panel in panels:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells
            if panel["type"] == "row":
                continue
            self.assertTrue(panel["targets"], panel["title"])
            for target in panel["targets"]:
                self.assertTrue(target["expr"] and target["legendFormat"], panel["title"])

    def test_only_documented_metrics_are_used(self):
        documented = set(re.findall(r"^\| `(holdfast_\w+)`", text("docs/metrics.md"), flags=re.M))
        summaries = re.findall(r"^\| `(holdfast_\w+)` \| summary", text("docs/metrics.md"), flags=re.M)
        documented |= {name + suffix for name in summaries for suffix in ("_sum", "_count")}
        documented |= set(re.findall(r"record: (\S+)", text(RULES))) | {"holdfast_job"}
        expressions = [t["expr"] for p in self.board["panels"] for t in p.get("targets", [])]
        self.assertEqual(metrics_in("\n".join(expressions)) - documented, set())
        lines = [line for line in text(RULES).splitlines() if "holdfast_" in line and "#" not in line]
        self.assertEqual(metrics_in("\n".join(lines)) - documented, set())


if __name__ == "__main__":
    unittest.main()
