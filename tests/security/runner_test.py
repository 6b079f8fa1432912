#!/usr/bin/env python3
"""What a runner may do with its certificate: run and stop jobs as its own user or an allowed one."""

import os
import pathlib
import subprocess
import unittest

from cluster import ClusterTest, wait_for

OWN, OWN_UID = "bin", 2
ALLOWED, ALLOWED_UID = "games", 5
OTHER = "daemon"


@unittest.skipUnless(os.geteuid() == 0, "only root can start workers of other users")
class RunnerTest(ClusterTest):
    def setUp(self):
        self.cluster = cluster = self.make(settings=(f'access.run_as_users=["{ALLOWED}"]',))
        cluster.root.chmod(0o711)
        for node in ("n1", "n2"):  # one for each run
            cluster.add_node(node, settings=("workers.enabled=true", f"workers.log_dir={cluster.root}/logs"))
        cluster.await_up("n1", "n2")
        for name in (OWN, OTHER, "root"):
            self.join(name, "runner")
        self.join("carol", "viewer")
        self.join("dan", "operator")

    def join(self, name: str, role: str):
        done = self.cluster.join(name, self.cluster.token("--node", name, role=role))
        self.assertEqual(done.returncode, 0, done.stderr)

    def run_job(self, name: str, job: str, *options: str, script: str = "id -u",
                detach: bool = False) -> subprocess.CompletedProcess:
        flags = ["--detach"] if detach else []
        return self.cluster.run(name, "run", "--job", job, "--chdir", "/", *flags, *options, "--", "/bin/sh", "-c",
                                script)

    def output(self, job: str) -> str:
        logs = sorted(pathlib.Path(self.cluster.root, "logs", job).glob("*/rank-0.log"))
        return logs[-1].read_text() if logs else ""

    def refused(self, done: subprocess.CompletedProcess, *texts: str):
        self.assertNotEqual(done.returncode, 0, done.stdout)
        for text in texts:
            self.assertIn(text, done.stderr)

    def test_a_runner_runs_as_itself_or_an_allowed_user(self):
        done = self.run_job(OWN, "own")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.output("own"), f"{OWN_UID}\n")
        done = self.run_job(OWN, "allowed", "--user", ALLOWED)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.output("allowed"), f"{ALLOWED_UID}\n")
        self.assertEqual(self.run_job(OWN, "named", "--user", OWN).returncode, 0)
        self.refused(self.run_job(OWN, "x", "--user", OTHER), "access.run_as_users", OTHER)
        self.refused(self.run_job(OWN, "x", "--user", "root"), "access.run_as_users")
        self.refused(self.run_job("root", "x"), "would run as root")
        self.refused(self.run_job("root", "x", "--user", "root"), "access.run_as_users")
        self.refused(self.run_job("carol", "x"), "needs the role runner")
        self.refused(self.run_job("dan", "x"), "needs the role runner")
        # The job of another user stays with its owner.
        self.refused(self.run_job(OTHER, "own"), f"belongs to uid {OWN_UID}")
        self.assertEqual(self.output("own"), f"{OWN_UID}\n")
        self.assertFalse(pathlib.Path(self.cluster.root, "logs", "x").exists(), "a refused run has started")
        # The audit log names who called.
        self.assertIn(f"spiffe://test/runner/{OWN}", self.cluster.hf("audit", "-o", "json"))

    def test_a_runner_stops_jobs_of_its_user_or_an_allowed_one(self):
        waits = "echo begun; sleep 120"
        self.assertEqual(self.run_job(OWN, "own", script=waits, detach=True).returncode, 0)
        self.assertEqual(self.run_job(OWN, "allowed", "--user", ALLOWED, script=waits, detach=True).returncode, 0)
        wait_for(lambda: "begun" in self.output("own") and "begun" in self.output("allowed"), 30, "both run")
        for name in (OTHER, "carol", "dan"):
            self.refused(self.cluster.run(name, "stop", "own", "--now"))
        self.refused(self.cluster.run(OTHER, "stop", "own", "--now"), f"job 'own' belongs to uid {OWN_UID}",
                     "access.run_as_users")
        self.refused(self.cluster.run(OTHER, "stop", "none", "--now"), "none")
        runs = self.cluster.json("runs")["runs"]
        self.assertEqual({one["job"]: one["phase"] for one in runs}, {"own": "running", "allowed": "running"})
        for name, job in ((OTHER, "allowed"), (OWN, "own")):
            done = self.cluster.run(name, "stop", job, "--now")
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
