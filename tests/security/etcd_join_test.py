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
        """Joins with the join addresses of all coordinators, or of one if `first` names one."""
        order = first if isinstance(first, (list, tuple)) else [first]
        address = ",".join(self.join_at[one] for one in order)
        return self.cluster.run(machine, "join", address, token, "--name", name or machine, "--address", HOST,
                                *self.cluster.folders(machine))

    def running(self) -> list[str]:
        return [one for one in COORDINATORS if one in self.cluster.processes]

    def others(self) -> list[str]:
        return [one for one in COORDINATORS if one != self.leader]

    def refused(self, machine: str, token: str, first, node: str, text: str = "does not lead"):
        done = self.join(machine, token, first, name=node)
        self.assertIn(done.returncode, (1, 5), f"{machine} joined as {node}, or wrong usage: {done.stderr}")
        self.assertIn(text, done.stderr)
        self.assertFalse((self.cluster.folder(machine) / "tls" / "agent.pem").exists())

    def test_a_token_works_once_at_whichever_coordinator_leads(self):
        cluster = self.cluster
        first = self.token("n1")
        # Those that stand by issue nothing, also not for a good token. The list finds the leader.
        for one in self.others():
            self.refused("early", first, one, "n1")
        done = self.join("n1", first, [*self.others(), self.leader])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f'coordinator = "{self.all}"', (cluster.folder("n1") / "etc" / "agent.toml").read_text())
        cluster.start_agent("n1")
        cluster.await_log("n1", "CoordinatorAttached")
        self.refused("thief", first, self.leader, "n1", "used token")
        for one in self.others():
            self.refused("thief", first, one, "n1")

        # A token of the old leader is good at the new one, and a used one stays used.
        second = self.token("n2")
        old = self.leader
        cluster.stop(old, signal.SIGKILL)
        self.leader = self.await_leader(not_one=old)
        self.refused("thief", first, self.leader, "n1", "used token")
        done = self.join("n2", second, [old, *(one for one in COORDINATORS if one != old)])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.refused("thief", second, self.leader, "n2", "used token")
        cluster.await_log("n1", "CoordinatorAttached", 2)

        # A member of etcd is lost: tokens are made and used as before, and a used one stays used.
        self.members[0].kill()
        self.members[0].wait(timeout=30)
        fourth = self.token("n4")
        done = self.join("n4", fourth, list(self.running()))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.leader = self.await_leader()
        self.refused("thief", fourth, self.leader, "n4", "used token")
        self.refused("thief", first, self.leader, "n1", "used token")

        # The first one of the list is stopped and accepts connections only.
        third = self.token("n3")
        self.start_coordinator(old)
        paused = self.leader = self.await_leader()
        cluster.processes[paused].send_signal(signal.SIGSTOP)
        try:
            self.leader = self.await_leader(not_one=paused)
            done = self.join("n3", third, [paused, *(one for one in COORDINATORS if one != paused)])
        finally:
            cluster.processes[paused].send_signal(signal.SIGCONT)
        self.assertEqual(done.returncode, 0, done.stderr)
        # The one that led before finds that it does not: it does not take the token either.
        self.refused("thief", third, paused, "n3")
        self.refused("thief", third, self.leader, "n3", "used token")


if __name__ == "__main__":
    if not os.access(ETCD, os.X_OK):
        print("etcd is not installed (deploy/install-deps.sh --ops, package etcd-server)")
        sys.exit(77)
    unittest.main(verbosity=2)
