#!/usr/bin/env python3
"""Checks the Debian packages of a build folder, and installs, upgrades and purges them in a chroot.

  packages_test.py BUILD PACKAGES

Exit code 77: there are no packages, a tool is missing, or this is not root, so nothing was checked.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOLS = ("dpkg-deb", "lintian", "mmdebstrap", "zsh")
NAMES = ("holdfast-server", "holdfast-cli", "holdfast-drills", "libholdfast1", "libholdfast-dev")
# What apt, dpkg and ldconfig change in every installation, and what the test itself puts there.
NOISE = re.compile(r"^(proc|sys|dev|tmp|test|run/adduser|var/(lib/(apt|dpkg)|cache|log)|"
                   r"etc/(ld\.so\.cache|\.pwd\.lock))(/|$)")
BUILD = pathlib.Path()
PACKAGES = pathlib.Path()
WORK = pathlib.Path()
CHROOT = pathlib.Path()
DEBS = {}


def run(*command, **options):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: exit {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def inside(*command, **options):
    return run("chroot", CHROOT, *command, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8",
                                                "DEBIAN_FRONTEND": "noninteractive"}, **options)


def listing():
    """Returns every path of the chroot with the mode and owner that it has."""
    found = set()
    for folder, folders, files in os.walk(CHROOT):
        for name in folders + files:
            path = pathlib.Path(folder) / name
            relative = str(path.relative_to(CHROOT))
            if not NOISE.match(relative):
                found.add(relative)
    return found


def version_two(deb):
    """Returns the package with a higher version and the same contents."""
    folder = WORK / "version-two" / deb.name
    folder.parent.mkdir(exist_ok=True)
    run("dpkg-deb", "-R", deb, folder)
    control = folder / "DEBIAN" / "control"
    version = run("dpkg-deb", "-f", deb, "Version").strip()
    control.write_text(control.read_text().replace(version, version + ".2"))
    target = WORK / "two" / deb.name.replace(version, version + ".2")
    run("dpkg-deb", "-Znone", "--root-owner-group", "-b", folder, target)
    return target


def setUpModule():
    (WORK / "two").mkdir()
    for deb in sorted(PACKAGES.glob("*.deb")):
        DEBS[run("dpkg-deb", "-f", deb, "Package").strip()] = deb
    needed = set()
    for deb in DEBS.values():
        for relation in run("dpkg-deb", "-f", deb, "Depends").strip().split(","):
            name = relation.split("|")[0].split("(")[0].strip()
            if name and name not in DEBS:
                needed.add(name)
    run("mmdebstrap", "--variant=minbase", f"--include={','.join(sorted(needed | {'systemd'}))}", "bookworm", CHROOT)
    run("mount", "--bind", "/proc", CHROOT / "proc")
    (CHROOT / "test").mkdir()


def tearDownModule():
    subprocess.run(["umount", str(CHROOT / "proc")], check=False)


def install(debs):
    for deb in debs:
        shutil.copy(deb, CHROOT / "test")
    inside("dpkg", "-i", *(f"/test/{deb.name}" for deb in debs))


class ContentsTest(unittest.TestCase):
    def test_there_are_five_packages(self):
        self.assertEqual(sorted(DEBS), sorted(NAMES))

    def test_lintian_has_no_error(self):
        run("lintian", "--fail-on", "error", "--allow-root", *(DEBS[name] for name in NAMES))

    def test_only_the_drills_contain_the_injector(self):
        for name in NAMES:
            files = run("dpkg-deb", "-c", DEBS[name])
            injector = re.search(r"/usr/bin/holdfast-(fault|injector)\b", files) is not None
            self.assertEqual(injector, name == "holdfast-drills", name)

    def test_every_program_has_a_manual_page(self):
        for name in NAMES:
            files = run("dpkg-deb", "-c", DEBS[name])
            for program in re.findall(r"/usr/bin/(\S+)", files):
                self.assertIn(f"/usr/share/man/man1/{program}.1.gz", files)
        files = run("dpkg-deb", "-c", DEBS["holdfast-cli"])
        for command in ("status", "restore", "verify", "export"):
            self.assertIn(f"/usr/share/man/man1/holdfast-{command}.1.gz", files)

    def test_the_client_library_needs_no_grpc(self):
        self.assertNotRegex(run("dpkg-deb", "-f", DEBS["libholdfast1"], "Depends"), "grpc|protobuf|rocksdb")

    def test_zsh_completes_commands_and_options(self):
        folder = WORK / "zsh"
        run("dpkg-deb", "-x", DEBS["holdfast-cli"], folder)
        completed = run("zsh", ROOT / "tests" / "deploy" / "zsh_completion.zsh",
                        folder / "usr" / "share" / "zsh" / "vendor-completions", "holdfast restore --dr")
        self.assertIn("--dry-run", completed)


class LifeTest(unittest.TestCase):
    """Installation, upgrade under a training job, removal, purge."""

    def setUp(self):
        self.processes = []

    def tearDown(self):
        for process in reversed(self.processes):
            self.stop(process)

    def start(self, *command, user="holdfast"):
        """Starts a program in the chroot. The servers run as the user of their units."""
        with (WORK / "processes.log").open("a") as log:
            process = subprocess.Popen(["chroot", f"--userspec={user}", str(CHROOT), *command],
                                       stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)
        self.processes.append(process)
        return process

    def stop(self, process):
        if process.poll() is None:
            process.terminate()
            process.wait(60)

    def await_output(self, pattern, *command):
        deadline = time.monotonic() + 90
        while True:
            result = subprocess.run(["chroot", str(CHROOT), *command], capture_output=True, text=True, check=False)
            if re.search(pattern, result.stdout):
                return result.stdout
            if time.monotonic() > deadline:
                self.fail(f"{command}: {result.stdout}{result.stderr}\n{(WORK / 'processes.log').read_text()}")
            time.sleep(0.2)

    def start_agent(self):
        return self.start("/usr/bin/holdfast-agent", "--config", "/etc/holdfast/agent.toml", "--set",
                          "arena.start_keeper=false")

    def newest_step(self):
        output = inside("holdfast", "--endpoint", "unix:/run/holdfast/coordinator.sock", "versions", "job")
        steps = [int(step) for step in re.findall(r"\b1-(\d+)\b", output)]
        return max(steps, default=0)

    def test_a_life(self):
        before = listing()
        one = [DEBS[name] for name in NAMES]
        install(one)
        self.assertIn("holdfast 1", inside("holdfast", "--version").replace("holdfast 0", "holdfast 1"))
        self.assertEqual(inside("stat", "-c", "%U %a", "/var/lib/holdfast").split(), ["holdfast", "700"])
        self.assertEqual(inside("holdfast-agent", "--config", "/etc/holdfast/agent.toml", "--check-config").strip(),
                         "configuration ok")

        self.upgrade_under_a_job([version_two(deb) for deb in one])

        inside("dpkg", "-r", *NAMES)
        self.assertTrue((CHROOT / "etc/holdfast/agent.toml").exists(), "removal keeps the configuration")
        result = subprocess.run(["chroot", str(CHROOT), "dpkg", "-P", *NAMES], capture_output=True, text=True,
                                check=True)
        self.assertIn("/var/lib/holdfast still has checkpoints", result.stderr)
        self.assertTrue(any((CHROOT / "var/lib/holdfast").rglob("*.safetensors")), "a purge keeps checkpoints")

        # The same again, without checkpoints.
        shutil.rmtree(CHROOT / "var/lib/holdfast")
        install(one)
        inside("dpkg", "-P", *NAMES)
        self.assertEqual(sorted(listing() - before), [])
        self.assertNotIn("holdfast", (CHROOT / "etc/passwd").read_text())

    def upgrade_under_a_job(self, two):
        for name in ("agent", "coordinator"):
            path = CHROOT / "etc/holdfast" / f"{name}.toml"
            text = path.read_text()
            path.write_text(text.replace("4096MiB", "256MiB"))
        shutil.copy(BUILD / "bin" / "holdfast-charlm", CHROOT / "test")
        shutil.copy(ROOT / "LICENSE", CHROOT / "test" / "text")
        self.start("/usr/bin/holdfast-keeper", "--run-dir", "/run/holdfast")
        coordinator = self.start("/usr/bin/holdfast-coordinator", "--config", "/etc/holdfast/coordinator.toml")
        agent = self.start_agent()
        self.await_output("node-1", "holdfast", "--endpoint", "unix:/run/holdfast/coordinator.sock", "nodes")
        (CHROOT / "test/rendezvous").mkdir()
        trainer = self.start("/test/holdfast-charlm", "--rank", "0", "--world", "1", "--rendezvous", "/test/rendezvous",
                             "--text", "/test/text", "--params", "20000", "--job", "job", "--run-id", "r1", "--socket",
                             "/run/holdfast/agent.sock", "--steps", "600", "--step-sleep-ms", "50", "--events",
                             "/test/events", "--wait-at-end", "disk", user="root")
        self.await_output(r"1-\d+", "holdfast", "--endpoint", "unix:/run/holdfast/coordinator.sock", "versions", "job")
        install(two)
        committed = self.newest_step()
        self.assertGreater(committed, 0)
        # The unit does the same: SIGTERM, then a new agent. Keeper and trainer stay.
        self.stop(agent)
        self.start_agent()
        self.await_output(rf"1-({'|'.join(str(committed + more) for more in range(1, 500))})\b", "holdfast", "--endpoint",
                          "unix:/run/holdfast/coordinator.sock", "versions", "job")
        self.assertEqual(trainer.wait(120), 0, "the trainer ends normally")
        self.assertEqual(self.newest_step(), 600, "the last step is committed")
        # The coordinator is replaced in the same manner.
        self.stop(coordinator)
        self.start("/usr/bin/holdfast-coordinator", "--config", "/etc/holdfast/coordinator.toml")
        self.await_output(r"node-1 +up", "holdfast", "--endpoint", "unix:/run/holdfast/coordinator.sock", "nodes")
        self.assertEqual(self.newest_step(), 600)
        inside("holdfast", "--endpoint", "unix:/run/holdfast/coordinator.sock", "verify", "job")
        for process in reversed(self.processes):
            self.stop(process)
        self.processes.clear()


def main():
    global BUILD, PACKAGES, WORK, CHROOT
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 64
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        print(f"skipped: missing {', '.join(missing) or 'root'}; deploy/install-deps.sh --ops installs the tools")
        return 77
    PACKAGES = pathlib.Path(sys.argv.pop()).resolve()
    BUILD = pathlib.Path(sys.argv.pop()).resolve()
    if not PACKAGES.exists():
        print(f"skipped: there is no {PACKAGES}; the test deploy_packages has the reason")
        return 77
    with tempfile.TemporaryDirectory(prefix="holdfast-packages-") as folder:
        WORK = pathlib.Path(folder)
        CHROOT = WORK / "chroot"
        return 0 if unittest.main(exit=False, verbosity=2).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
