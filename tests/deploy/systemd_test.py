#!/usr/bin/env python3
"""Checks the units of deploy/systemd without a running systemd.

  systemd_test.py BINARIES

Exit code 77: systemd-analyze is missing, so nothing was checked.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
EXPOSURE_MAX = 20  # tenths
BINARIES = pathlib.Path()


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def settings(unit):
    """Returns the settings of a unit: a setting that is given several times has all its values."""
    values = {}
    for line in unit.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            values.setdefault(key, []).append(value)
    return values


class UnitsTest(unittest.TestCase):
    def test_all_units_are_there(self):
        self.assertEqual([unit.stem for unit in UNITS],
                         ["holdfast-agent", "holdfast-coordinator", "holdfast-fault", "holdfast-keeper"])

    def test_exposure_is_low(self):
        for unit in UNITS:
            result = run("systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(unit))
            overall = re.search(r"exposure level for \S+: ([0-9.]+)", result.stdout)
            self.assertTrue(overall, result.stdout + result.stderr)
            self.assertEqual(result.returncode, 0, f"{unit.name}: exposure {overall[1]}, more than 2.0")

    def test_systemd_accepts_the_units(self):
        with tempfile.TemporaryDirectory() as folder:
            # The programs need not be installed.
            for unit in UNITS:
                text = unit.read_text().replace("/usr/bin/", f"{BINARIES}/")
                (pathlib.Path(folder) / unit.name).write_text(text)
            result = run("systemd-analyze", "verify", *(f"{folder}/{unit.name}" for unit in UNITS))
            self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))

    def test_systemd_accepts_the_drop_in(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            for unit in UNITS:
                (path / unit.name).write_text(unit.read_text().replace("/usr/bin/", f"{BINARIES}/"))
            (path / "holdfast-agent.service.d").mkdir()
            shutil.copy(FOLDER / "agent-workers.conf", path / "holdfast-agent.service.d" / "workers.conf")
            result = run("systemd-analyze", "verify", f"{folder}/holdfast-agent.service")
            self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))

    def test_no_operator_or_upgrade_stops_the_keeper(self):
        keeper = settings(FOLDER / "holdfast-keeper.service")
        self.assertEqual(keeper["RefuseManualStop"], ["yes"])
        self.assertNotIn("WatchdogSec", keeper)
        for unit in UNITS:
            values = settings(unit)
            for key in ("Requires", "BindsTo", "PartOf", "RuntimeDirectory", "Conflicts"):
                self.assertNotIn(key, values, f"{unit.name}: it would couple the life of the keeper to another unit")

    def test_nothing_starts_the_fault_injector(self):
        fault = settings(FOLDER / "holdfast-fault.service")
        for key in ("WantedBy", "RequiredBy", "Also"):
            self.assertNotIn(key, fault)
        self.assertIn("drills.restart_servers=false", fault["ExecStart"][0])
        for unit in UNITS:
            if unit.stem != "holdfast-fault":
                self.assertNotIn("holdfast-fault", unit.read_text())
        config = (ROOT / "deploy" / "config" / "fault.toml").read_text()
        self.assertIn("\nenabled = false\n", config)

    def test_systemd_accepts_the_drop_in_for_links(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            unit = FOLDER / "holdfast-fault.service"
            (path / unit.name).write_text(unit.read_text().replace("/usr/bin/", f"{BINARIES}/"))
            (path / "holdfast-fault.service.d").mkdir()
            shutil.copy(FOLDER / "fault-links.conf", path / "holdfast-fault.service.d" / "links.conf")
            result = run("systemd-analyze", "verify", f"{folder}/holdfast-fault.service")
            self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))

    def test_users_are_distinct_and_rings_allowed(self):
        agent = settings(FOLDER / "holdfast-agent.service")
        self.assertNotIn("PrivateUsers", agent)
        self.assertEqual(agent["LimitMEMLOCK"], ["infinity"])
        allowed = set(agent["SystemCallFilter"][0].split())
        self.assertGreaterEqual(allowed, {"io_uring_setup", "io_uring_enter", "io_uring_register"})
        self.assertIn("arena.start_keeper=false", agent["ExecStart"][0])

    def test_servers_report_to_systemd(self):
        for unit in UNITS:
            self.assertEqual(settings(unit)["Type"], ["notify"], unit.name)
        for name in ("agent", "coordinator", "fault"):
            self.assertIn("WatchdogSec", settings(FOLDER / f"holdfast-{name}.service"))

    def test_the_user_and_the_folders_are_made(self):
        for tool, file in (("systemd-sysusers", "holdfast.sysusers.conf"),
                           ("systemd-tmpfiles", "holdfast.tmpfiles.conf")):
            if not shutil.which(tool):
                self.skipTest(f"{tool} is missing")
            with tempfile.TemporaryDirectory() as root:
                etc = pathlib.Path(root) / "etc"
                etc.mkdir()
                (etc / "passwd").write_text("holdfast:x:990:990::/var/lib/holdfast:/usr/sbin/nologin\n"
                                            if tool == "systemd-tmpfiles" else "")
                (etc / "group").write_text("holdfast:x:990:\n" if tool == "systemd-tmpfiles" else "")
                arguments = ["--create"] if tool == "systemd-tmpfiles" else []
                result = run(tool, f"--root={root}", *arguments, str(FOLDER / file))
                self.assertEqual(result.returncode, 0, result.stderr)
                if tool == "systemd-sysusers":
                    self.assertIn("holdfast:x:", (etc / "passwd").read_text())
                else:
                    for name in ("run/holdfast", "var/lib/holdfast", "var/log/holdfast"):
                        self.assertTrue((pathlib.Path(root) / name).is_dir(), name)


if __name__ == "__main__":
    if not shutil.which("systemd-analyze"):
        print("SKIPPED: systemd-analyze is missing (deploy/install-deps.sh --ops)")
        sys.exit(77)
    BINARIES = pathlib.Path(sys.argv.pop())
    unittest.main()
