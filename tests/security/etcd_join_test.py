#!/usr/bin/env python3
"""Joins at several coordinators that share a real etcd: the machine finds the leader, and a token works once in all."""

import os
import signal
import subprocess
import sys
import unittest

from cluster import HOST, ClusterTest, free_port, wait_for

ETCD = "/usr/bin/etcd"
COORDINATORS = ("c0", "c1", "c2")
MEMBERS = 3  # of etcd


class EtcdJoinTest(ClusterTest):
    def setUp(self):
        self.cluster = cluster = self.make(start=False)
        self.start_etcd()
        self.listen = {one: f"{HOST}:{free_port()}" for one in COORDINATORS}
        self.join_at = {one: f"{HOST}:{free_port()}" for one in COORDINATORS}
        self.all = ",".join(self.listen.values())
        for one in COORDINATORS:
            self.start_coordinator(one)
        self.leader = self.await_leader()

    def start_etcd(self):
        """Three members, so that the store survives the loss of one."""
        client, peer = ([f"{HOST}:{free_port()}" for _ in range(MEMBERS)] for _ in range(2))
        self.store = f"etcd://{','.join(client)}"
        members = ",".join(f"m{i}=http://{peer[i]}" for i in range(MEMBERS))
        self.members = []
        for i in range(MEMBERS):
            log = open(self.cluster.root / f"etcd{i}.log", "wb")  # pylint: disable=consider-using-with
            self.addCleanup(log.close)
            etcd = subprocess.Popen(  # pylint: disable=consider-using-with
                [ETCD, "--name", f"m{i}", "--data-dir", self.cluster.root / f"etcd{i}", "--listen-client-urls",
                 f"http://{client[i]}", "--advertise-client-urls", f"http://{client[i]}", "--listen-peer-urls",
                 f"http://{peer[i]}", "--initial-advertise-peer-urls", f"http://{peer[i]}", "--initial-cluster", members,
                 "--log-level", "error"], stdout=log, stderr=log)
            self.addCleanup(etcd.wait)
            self.addCleanup(etcd.kill)
            self.members.append(etcd)

    def start_coordinator(self, one: str):
        folder = self.cluster.folder(one)
        folder.mkdir(exist_ok=True)
        self.cluster.start(one, "holdfast-coordinator", f"store={self.store}", f"listen={self.listen[one]}",
                           f"advertise={self.listen[one]}",
                           f"join.listen={self.join_at[one]}", f"join.coordinators={self.all}",
                           f"data_dir={folder}/data", "etcd.lease_s=2",
                           config=self.cluster.folder("coordinator") / "etc" / "coordinator.toml")
        self.cluster.await_log(one, "JoinListening")

    def await_leader(self, not_one: str = "") -> str:
        def leads():
            for one in COORDINATORS:
                if one == not_one or one not in self.cluster.processes:
                    continue
                ran = self.cluster.run("coordinator", "--timeout", "1s", "--endpoint", self.listen[one], "certificates")
                if ran.returncode == 0:
                    return one
            return None
        return wait_for(leads, 30, "a coordinator leads")

    def token(self, node: str) -> str:
        return self.cluster.token("--node", node, "--endpoint", self.all)

    def join(self, machine: str, token: str, first, name: str = ""):
        """Joins with the join addresses of the coordinators in `first`, or of the one that it names."""
        order = first if isinstance(first, (list, tuple)) else [first]
        address = ",".join(self.join_at[one] for one in order)
        return self.cluster.run(machine, "join", address, token, "--name", name or machine, "--address", HOST,
                                *self.cluster.folders(machine))

    def answer(self, machine: str, token: str, order, name: str = ""):
        """The leader's answer. The leader can change at any time, so a list that finds none is tried again."""
        def answered():
            done = self.join(machine, token, order, name)
            return None if "does not lead" in done.stderr else done
        return wait_for(answered, 30, "a leader answers")

    def joined(self, machine: str, token: str, order):
        done = self.answer(machine, token, order)
        self.assertEqual(done.returncode, 0, done.stderr)

    def running(self) -> list[str]:
        return [one for one in COORDINATORS if one in self.cluster.processes]

    def others(self) -> list[str]:
        return [one for one in COORDINATORS if one != self.leader]

    def expect_refused(self, machine: str, done, text: str):
        self.assertIn(done.returncode, (1, 5), f"{machine} joined, or wrong usage: {done.stderr}")
        self.assertRegex(done.stderr, text)
        self.assertFalse((self.cluster.folder(machine) / "tls" / "agent.pem").exists())

    def refused(self, token: str, one: str, node: str):
        """A coordinator that stands by refuses a used token. So does one that leads since a moment."""
        self.expect_refused("thief", self.join("thief", token, one, node), "does not lead|used token")

    def used(self, token: str, node: str):
        """The leader refuses a used token."""
        self.expect_refused("thief", self.answer("thief", token, self.running(), node), "used token")

    def test_a_token_works_once_at_whichever_coordinator_leads(self):
        cluster = self.cluster
        first = self.token("n1")
        # Those that stand by issue nothing, also not for a good token. The list finds the leader.
        for one in self.others():
            self.expect_refused("early", self.join("early", first, one, "n1"), "does not lead")
        self.joined("n1", first, [*self.others(), self.leader])
        self.assertIn(f'coordinator = "{self.all}"', (cluster.folder("n1") / "etc" / "agent.toml").read_text())
        cluster.start_agent("n1")
        cluster.await_log("n1", "CoordinatorAttached")
        self.used(first, "n1")
        for one in self.others():
            self.refused(first, one, "n1")

        # A token of the old leader is good at the new one, and a used one stays used.
        second = self.token("n2")
        old = self.await_leader()
        cluster.stop(old, signal.SIGKILL)
        self.await_leader(not_one=old)
        self.used(first, "n1")
        self.joined("n2", second, [old, *(one for one in COORDINATORS if one != old)])
        self.used(second, "n2")
        cluster.await_log("n1", "CoordinatorAttached", 2)

        # A member of etcd is lost, perhaps the one that leads: the coordinators may change their leader, too. Tokens
        # are made and used as before, and a used one stays used.
        self.members[0].kill()
        self.members[0].wait(timeout=30)
        self.await_leader()
        fourth = self.token("n4")
        self.joined("n4", fourth, self.running())
        self.used(fourth, "n4")
        self.used(first, "n1")

        # The first one of the list is stopped and accepts connections only.
        third = self.token("n3")
        self.start_coordinator(old)
        paused = self.await_leader()
        cluster.processes[paused].send_signal(signal.SIGSTOP)
        try:
            self.await_leader(not_one=paused)
            self.joined("n3", third, [paused, *(one for one in COORDINATORS if one != paused)])
        finally:
            cluster.processes[paused].send_signal(signal.SIGCONT)
        # The one that led before finds that it does not: it does not take the token either.
        self.refused(third, paused, "n3")
        self.used(third, "n3")


if __name__ == "__main__":
    if not os.access(ETCD, os.X_OK):
        print("etcd is not installed (deploy/install-deps.sh --ops, package etcd-server)")
        sys.exit(77)
    unittest.main(verbosity=2)
