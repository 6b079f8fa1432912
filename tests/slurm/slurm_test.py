#!/usr/bin/env python3
"""Tests deploy/slurm on a real Slurm of four nodes. `slurm_test.py CLASS.TEST` runs one test.

Exit code 77: Slurm is not installed.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import unittest

import cluster
from cluster import BIN, Cluster, wait_until

# Enough time for a test to act while the job runs.
STEP_MS = 30


class SlurmTest(unittest.TestCase):
    nodes = 4
    keep_s = 600
    settle_s = 0

    def setUp(self):
        self.cluster = Cluster(self.nodes, self.keep_s, self.settle_s)
        self.addCleanup(self.cluster.stop)
        self.work = self.cluster.root / "work"
        self.steps = 1_000_000

    # ---- the job -------------------------------------------------------------------------------

    def train(self, nodes):
        """Submits the job of one rank per node, which reads at each start how far to train. Returns its ID."""
        (self.work / "steps").write_text(str(self.steps))
        program = f'exec holdfast-charlm "$@" --steps "$(cat {self.work}/steps)"'
        return self.cluster.sbatch(nodes, "bash", "-c", program, "train", "--rendezvous", self.work, "--events",
                                   self.work / "events", "--final", self.work / "final", "--save-every", "1",
                                   "--when-full", "wait", "--step-sleep-ms", STEP_MS, "--wait-at-end", "disk",
                                   "--log-every", "1")

    def end_after_next_start(self):
        """Makes the next start of the job end some steps after the present step. The present start does not end."""
        self.steps = max(event["step"] for event in self.events("step")) + 150
        (self.work / "steps").write_text(str(self.steps))

    def events(self, kind, path="events"):
        text = (self.work / path).read_text() if (self.work / path).exists() else ""
        events = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return [event for event in events if event["event"] == kind]

    def await_step(self, step):
        wait_until(lambda: any(event["step"] >= step for event in self.events("step")), 40,
                   lambda: f"step {step}\n{self.cluster.describe('1')}")

    def await_requeue(self, job):
        """Returns when the job runs for the second time, with the same ID."""
        wait_until(lambda: self.cluster.job(job)["Restarts"] == "1", 60, lambda: self.cluster.describe(job))
        self.cluster.await_state(job, ("RUNNING", "COMPLETED"))

    def expect_bits_of_an_uninterrupted_run(self, world):
        """Compares each step's loss, and the weights at the end, with those of a job without Holdfast and Slurm."""
        folder = self.work / "reference"
        folder.mkdir()
        command = [BIN / "holdfast-charlm", "--steps", str(self.steps), "--world", str(world), "--no-checkpoint",
                   "--rendezvous", folder, "--final", folder / "final", "--events", folder / "events"]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.DEVNULL)
                 for rank in range(world)]
        self.assertEqual([rank.wait(60) for rank in ranks], [0] * world)
        expected = {event["step"]: event["loss"] for event in self.events("step", "reference/events")}
        seen = set()
        for event in self.events("step"):
            self.assertEqual(event["loss"], expected[event["step"]], event)
            seen.add(event["step"])
        # A rank that is killed between a save and its event never reports the step.
        self.assertLessEqual(set(expected) - seen, {event["step"] for event in self.events("restored")})
        self.assertEqual((self.work / "final").read_bytes(), (folder / "final").read_bytes())

    def restored(self, world):
        """Returns rank → event, of the newest start; all ranks must have restored one version of the first start."""
        events = {event["rank"]: event for event in self.events("restored")}
        self.assertEqual(set(events), set(range(world)), self.cluster.describe("1"))
        self.assertEqual(len({event["version"] for event in events.values()}), 1, events)
        self.assertTrue(events[0]["version"].startswith("1-"), events)
        return events

    def expect_complete(self, job, world):
        """The job completes as incarnation 2, with the bits of an uninterrupted run."""
        self.cluster.await_state(job, ("COMPLETED",))
        self.expect_bits_of_an_uninterrupted_run(world)
        versions = self.cluster.holdfast("versions", "charlm")["versions"]
        self.assertEqual(versions[0]["version"], f"2-{self.steps}")

    def verify_disks(self, nodes, codes=(0,)):
        return self.cluster.run(BIN / "holdfast", "verify", "--deep", "--data-dir",
                                *[self.cluster.data_dir(node) for node in nodes], codes=codes)


class Allocation(SlurmTest):
    keep_s = 3
    settle_s = 5

    def test_agents_come_and_go_with_the_allocation(self):
        c = self.cluster
        c.start()
        self.assertEqual([c.agent_pid(node) for node in c.names], [None] * 4)
        self.steps = 200
        job = self.train(4)
        self.await_step(20)
        self.assertNotIn(None, [c.agent_pid(node) for node in c.names])
        self.assertEqual({node["node"] for node in c.holdfast("nodes")["nodes"] if node["alive"]},
                         set(c.names))
        c.await_state(job, ("COMPLETED",))
        wait_until(lambda: set(c.node_states().values()) == {"idle"}, 20, c.describe)
        self.assertEqual([c.agent_pid(node) for node in c.names], [None] * 4)
        keepers = [c.keeper_pid(node) for node in c.names]
        self.assertNotIn(None, keepers)
        # The agents may have removed a part of an older version.
        report = self.verify_disks(c.names, codes=(0, 2)).stdout
        self.assertNotIn("DAMAGED", report)
        newest = [line.split() for line in report.splitlines() if line.startswith(f"charlm  1-{self.steps} ")]
        self.assertEqual({row[2]: row[-1] for row in newest},
                         {f"{kind}-{i}": "ok" for kind in ("rank", "parity") for i in range(4)}, report)
        wait_until(lambda: [c.keeper_pid(node) for node in c.names] == [None] * 4, 20, "the memory is freed")
        # Any job on these nodes starts agents that serve the versions on their disks.
        c.sbatch(4, "sleep", "100")
        wait_until(lambda: c.holdfast("versions", "charlm")["versions"][0]["restorable"], 20, c.describe)
        self.expect_bits_of_an_uninterrupted_run(4)

    def test_an_agent_that_cannot_start_drains_its_node_and_holds_the_job(self):
        c = self.cluster
        c.start()
        with open(c.scripts / "holdfast.conf", "a", encoding="utf-8") as file:
            file.write('HOLDFAST_START_S=2\n[ "${SLURMD_NODENAME:-}" != n2 ] || HOLDFAST_AGENT_CONFIG=/nonexistent\n')
        job = self.train(2)
        fields = c.await_state(job, ("PENDING", "REQUEUE_HOLD"))
        wait_until(lambda: c.node_states()["n2"] == "drained", 30, c.describe)
        fields = c.await_state(job, ("PENDING",))
        self.assertEqual(fields["Priority"], "0", "the job must be held")
        self.assertIn("does not serve trainers", c.log("n2/agent.log"))
        wait_until(lambda: c.agent_pid("n1") is None, 20, "the agent of the other node stops")
        self.assertIsNone(c.agent_pid("n2"))


class Requeue(SlurmTest):
    def test_a_requeue_on_the_same_nodes_finds_its_memory(self):
        c = self.cluster
        c.start()
        job = self.train(4)
        self.await_step(40)
        keepers = [c.keeper_pid(node) for node in c.names]
        before = c.nodes_of(job)
        self.end_after_next_start()
        os.kill(c.trainers("n3")[2], 9)
        self.await_requeue(job)
        self.assertEqual(c.nodes_of(job), before)
        wait_until(lambda: len(self.events("restored")) == 4, 40, lambda: c.describe(job))
        restored = self.restored(4)
        self.assertEqual({event["tier"] for event in restored.values()}, {"memory"}, restored)
        self.assertGreaterEqual(restored[0]["step"], 30)
        self.assertEqual([c.keeper_pid(node) for node in c.names], keepers)
        self.expect_complete(job, 4)
        # The code is that of the killed rank, or of one that srun ended because of it.
        self.assertRegex(c.log(f"work/{job}.out", 100000), r"exit code \d+: requeued")

    def test_exit_code_93_is_not_requeued_and_others_are_until_the_limit(self):
        c = self.cluster
        c.start()
        # The other rank waits for rank 1 until srun kills it, with a higher exit code than 93.
        fail = "[ $RANK != 1 ] || { sleep 0.5; exit $0; }; sleep 100"
        never = c.sbatch(2, "bash", "-c", fail, "93")
        once = c.sbatch(2, "bash", "-c", fail, "7", MAX_RESTARTS="1")
        fields = c.await_state(never, ("FAILED",))
        self.assertEqual((fields["ExitCode"], fields["Restarts"]), ("93:0", "0"))
        fields = c.await_state(once, ("FAILED",))
        self.assertEqual(fields["Restarts"], "1")
        self.assertNotIn(fields["ExitCode"], ("0:0", "93:0"))
        fields = c.job(never)
        self.assertEqual((fields["JobState"], fields["Restarts"]), ("FAILED", "0"))
        self.assertIn("exit code 93: not requeued", c.log(f"work/{never}.out"))
        self.assertEqual(list(self.work.glob(".do-not-requeue*")), [])


    def test_a_cancelled_job_is_not_requeued(self):
        c = self.cluster
        c.start()
        # The batch script outlives its tasks until KillWait is over.
        (self.work / "ignore").write_text('[ -n "${SLURM_STEP_ID:-}" ] || trap "" TERM\n')
        job = c.sbatch(1, "sleep", "100", BASH_ENV=str(self.work / "ignore"))
        # The prolog is over when the task runs.
        wait_until(lambda: c.run("squeue", "--noheader", "--steps", "--format", "%i").stdout.count(f"{job}.0"), 20,
                   c.describe)
        time.sleep(0.5)
        c.run("scancel", job)
        wait_until(lambda: "of a job in the state" in c.log(f"work/{job}.out"), 20, lambda: c.describe(job))
        fields = c.await_state(job, ("CANCELLED",))
        self.assertEqual(fields["Restarts"], "0")
        wait_until(lambda: set(c.node_states().values()) == {"idle"}, 20, c.describe)
        self.assertEqual(c.job(job)["JobState"], "CANCELLED")


class LostNodes(SlurmTest):
    def test_the_batch_host_is_lost(self):
        c = self.cluster
        c.start()
        job = self.train(3)
        self.await_step(40)
        host = c.job(job)["BatchHost"]
        self.assertEqual(host, "n1")
        committed = int(c.holdfast("versions", "charlm")["versions"][0]["version"].split("-")[1])
        self.end_after_next_start()
        c.lose_node(host)
        shutil.rmtree(c.node_dir(host))
        self.await_requeue(job)
        self.assertEqual(c.nodes_of(job), ["n2", "n3", "n4"])
        wait_until(lambda: len(self.events("restored")) == 3, 40, lambda: c.describe(job))
        restored = self.restored(3)
        self.assertGreaterEqual(restored[0]["step"], committed - 3)
        self.assertEqual(restored[0]["tier"], "peer")
        self.assertRegex("".join(c.log(f"{node}/agent.log", 1000) for node in c.nodes_of(job)),
                         rf"ShardDecoded shard=charlm/{restored[0]['version']}/rank-0 ")
        self.expect_complete(job, 3)

    def drain_hook(self):
        done = self.cluster.run(self.cluster.scripts / "drain-hook", "--holdfast", BIN / "holdfast", "--lost-steps",
                                "20", codes=(0, 1, 2))
        return done.returncode, done.stdout + done.stderr

    def test_a_drained_node_can_be_taken_out_when_the_hook_reports_it(self):
        c = self.cluster
        c.start()
        job = self.train(3)
        self.await_step(40)
        self.assertEqual(self.drain_hook(), (0, ""))
        c.run("scontrol", "update", "nodename=n3", "state=drain", "reason=bad fan")
        wait_until(lambda: self.drain_hook() == (0, "n3: can be taken out\n"), 20, "the hook")
        self.assertEqual([(one["node"], one["drain_why"]) for one in c.holdfast("nodes")["nodes"] if one["draining"]],
                         [("n3", "drained by Slurm: bad fan")])
        self.assertIn("Comment=holdfast: can be taken out\n", c.run("scontrol", "show", "node", "n3").stdout)
        # A group of three survives one node, not two.
        c.run("scontrol", "update", "nodename=n2", "state=drain", "reason=memory")
        code, text = self.drain_hook()
        self.assertEqual(code, 2)
        self.assertIn("n2: can be taken out alone, and not together with n3", text)
        c.run("scontrol", "update", "nodename=n2", "state=resume")
        self.assertEqual(self.drain_hook(), (0, "n3: can be taken out\nn2: no longer drained\n"))
        self.assertNotIn("Comment=holdfast", c.run("scontrol", "show", "node", "n2").stdout)

        self.end_after_next_start()
        c.run("scontrol", "requeue", job)
        wait_until(lambda: c.node_states()["n3"] == "drained", 20, c.describe)
        os.kill(c.keeper_pid("n3"), 9)
        shutil.rmtree(c.data_dir("n3"))
        self.await_requeue(job)
        self.assertEqual(c.nodes_of(job), ["n1", "n2", "n4"])
        wait_until(lambda: len(self.events("restored")) == 3, 40, lambda: c.describe(job))
        self.restored(3)
        self.expect_complete(job, 3)


class SharedNode(SlurmTest):
    nodes = 1
    keep_s = 2

    def submit(self):
        job = self.cluster.sbatch(1, "sleep", "100", options=["--partition=shared"])
        self.cluster.await_state(job, ("RUNNING",))
        return job

    def cancel(self, job):
        self.cluster.run("scancel", job)
        self.cluster.await_state(job, ("CANCELLED",))
        wait_until(lambda: not (self.cluster.node_dir("n1") / "state/jobs" / job).exists(), 20, "the epilog")

    def test_jobs_that_share_a_node_share_its_agent(self):
        c = self.cluster
        c.start()
        first = self.submit()
        agent = wait_until(lambda: c.agent_pid("n1"), 20, c.describe)
        keeper = wait_until(lambda: c.keeper_pid("n1"), 20, c.describe)
        second = self.submit()
        # The record of a job whose epilog did not run.
        (c.node_dir("n1") / "state/jobs/999").touch()
        self.cancel(first)
        self.assertEqual(c.agent_pid("n1"), agent)

        os.kill(agent, 9)
        wait_until(lambda: c.agent_pid("n1") not in (None, agent), 20, "another agent")
        self.assertEqual(c.keeper_pid("n1"), keeper)

        self.cancel(second)
        wait_until(lambda: c.agent_pid("n1") is None, 20, c.describe)
        self.assertEqual(c.keeper_pid("n1"), keeper)
        # A job that starts before the time limit keeps the memory for as long as it runs.
        third = self.submit()
        time.sleep(c.keep_s + 0.5)
        self.assertEqual(c.keeper_pid("n1"), keeper)
        self.cancel(third)
        wait_until(lambda: c.keeper_pid("n1") is None, 20, "the memory is freed")

    def test_the_memory_is_freed_although_new_sessions_begin_late(self):
        """slurmd kills the epilog's process group when the epilog ends: on a busy node, before its child has its own
        session."""
        c = self.cluster
        programs = c.root / "programs"
        programs.mkdir()
        (programs / "setsid").write_text(f'#!/bin/sh\n(sleep 1; exec {shutil.which("setsid")} "$@") &\n')
        (programs / "setsid").chmod(0o755)
        with open(c.scripts / "holdfast.conf", "a", encoding="utf-8") as file:
            file.write(f"PATH={programs}:$PATH\n")
        c.start()
        job = self.submit()
        wait_until(lambda: c.keeper_pid("n1"), 20, c.describe)
        self.cancel(job)
        wait_until(lambda: c.keeper_pid("n1") is None, 20, "the memory is freed")


class Scripts(SlurmTest):
    """Slurm starts no job on a node whose epilog still runs; other configurations of Slurm may."""

    nodes = 1
    keep_s = 1
    settle_s = 2

    def script(self, name, job):
        return subprocess.Popen([self.cluster.scripts / name], stdin=subprocess.DEVNULL, env={
            **self.cluster.environment, "SLURMD_NODENAME": "n1", "SLURM_JOB_ID": job})

    def test_a_job_that_starts_while_the_agent_is_about_to_stop_keeps_it(self):
        c = self.cluster
        c.configure_holdfast(f"unix:{c.root}/absent.sock")  # agents start without a coordinator
        self.assertEqual(self.script("prolog.sh", "1").wait(60), 0)
        agent = c.agent_pid("n1")
        self.assertIsNotNone(agent)
        epilog = self.script("epilog.sh", "1")
        wait_until(lambda: not (c.node_dir("n1") / "state/jobs/1").exists(), 20, "the epilog")
        self.assertEqual(self.script("prolog.sh", "2").wait(60), 0)
        self.assertIsNone(epilog.poll())
        self.assertEqual(epilog.wait(60), 0)
        self.assertEqual(c.agent_pid("n1"), agent)
        self.assertEqual(self.script("epilog.sh", "2").wait(60), 0)
        self.assertIsNone(c.agent_pid("n1"))
        wait_until(lambda: c.keeper_pid("n1") is None, 20, "the memory is freed")


def main():
    reason = cluster.reason_to_skip()
    if reason is not None:
        print(f"SKIPPED: {reason}")
        return 77
    program = unittest.main(verbosity=2, exit=False)
    return 0 if program.result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
