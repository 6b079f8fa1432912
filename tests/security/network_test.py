#!/usr/bin/env python3
"""Network namespaces as machines: they join and protect each other over a network, and every port refuses certificates
that are missing, foreign, expired or of another cluster. Clients refuse such servers."""

import contextlib
import ctypes
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest

from cluster import HOST, Cluster, ClusterTest, call, wait_for
from join_test import Recorder
from training import JOB, NODES, Training

MACHINES = ("coordinator", *NODES, "stranger")
DATA_PORT, PEERS_PORT = 7071, 7072


def ip(*arguments) -> bool:
    return subprocess.run(["ip", *arguments], check=False, capture_output=True).returncode == 0


class LanCluster(Cluster):
    """A cluster whose machines are network namespaces at one switch."""

    def address(self, machine: str) -> str:
        return f"10.78.0.{MACHINES.index(machine) + 1}" if machine in MACHINES else HOST

    def namespace(self, machine: str) -> str:
        return f"hfs{os.getpid()}{machine}"

    def prefix(self, machine: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace(machine)] if machine in MACHINES else []

    @classmethod
    def make_network(cls, case: unittest.TestCase):
        switch, name = f"hfs{os.getpid()}", cls.namespace(cls, "")
        case.addCleanup(ip, "netns", "del", switch)
        if not (ip("netns", "add", switch) and ip("-n", switch, "link", "add", "lan", "type", "bridge")):
            case.skipTest("no permission to create network namespaces")
        ip("-n", switch, "link", "set", "lan", "up")
        for number, machine in enumerate(MACHINES):
            there = name + machine
            case.addCleanup(ip, "netns", "del", there)
            for step in (("netns", "add", there),
                         ("-n", switch, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns",
                          there),
                         ("-n", switch, "link", "set", f"port{number}", "master", "lan", "up"),
                         ("-n", there, "addr", "add", f"10.78.0.{number + 1}/24", "dev", "eth0"),
                         ("-n", there, "link", "set", "eth0", "up"), ("-n", there, "link", "set", "lo", "up")):
                assert ip(*step), step

    @contextlib.contextmanager
    def at(self, machine: str):
        """Connections that this thread makes begin at the machine."""
        library = ctypes.CDLL(None, use_errno=True)
        with open(f"/proc/self/task/{threading.get_native_id()}/ns/net", "rb") as before, \
                open(f"/run/netns/{self.namespace(machine)}", "rb") as there:
            assert library.setns(there.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert library.setns(before.fileno(), 0) == 0

    def issue(self, authority: Cluster, name: str, *arguments: str) -> pathlib.Path:
        """Makes a certificate with the key of an authority."""
        path = self.root / f"{name}.pem"
        authority.hf("cluster", "issue", "--name", "admin", "--out", str(path), *arguments,
                     *authority.folders("coordinator"), machine="issuer")
        return path


class NetworkTest(ClusterTest):
    def setUp(self):
        LanCluster.make_network(self)
        root = pathlib.Path(tempfile.mkdtemp(prefix="hfsec-"))
        self.addCleanup(shutil.rmtree, root, ignore_errors=True)
        self.cluster = LanCluster(root)
        self.addCleanup(self.cluster.close)
        self.cluster.start_coordinator()
        for node in NODES:
            at = self.cluster.address(node)
            self.cluster.add_node(node, settings=(f"data_listen={at}:{DATA_PORT}", f"peers.listen={at}:{PEERS_PORT}"))
        self.cluster.await_up(*NODES)
        self.other = self.make(start=False)  # another authority, for a cluster of the same name

    def identities(self) -> dict[str, pathlib.Path]:
        """The certificates that no server may accept."""
        own, role = self.cluster, ("--role", "operator", "--host", HOST)
        made = {
            "foreign": own.issue(self.other, "foreign", *role, "--cluster", "test"),
            "expired": own.issue(own, "expired", *role, "--cluster", "test", "--valid", "1s"),
        }
        time.sleep(1.2)
        return made

    def accepts_handshake(self, address: str, identity: pathlib.Path | None) -> bool:
        """Whether a server goes on after the TLS handshake of a client with this certificate."""
        context = ssl.create_default_context(cafile=self.cluster.folder("n1") / "tls" / "ca.crt")
        context.check_hostname = False
        context.set_alpn_protocols(["h2"])
        if identity is not None:
            context.load_cert_chain(identity)
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=2) as plain:
            try:
                # In TLS 1.3 the handshake of the client ends before the server has checked the certificate.
                with context.wrap_socket(plain, server_hostname=host) as connection:
                    return connection.recv(1) != b""
            except TimeoutError:
                return True  # the server waits for the client
            except OSError:
                return False

    def test_machines_protect_each_other_over_the_network(self):
        training = Training(self.cluster)
        self.addCleanup(training.stop)
        wait_for(lambda: training.peer_step() > 3, 40, "tier peer advances")
        training.stop()
        self.cluster.hf("verify", JOB, "--deep")

    def test_every_port_refuses_other_certificates(self):
        cluster, node = self.cluster, self.cluster.address("n1")
        good = {"operator": cluster.folder("coordinator") / "etc" / "operator.pem", "agent": cluster.identity("n2")}
        grpc = {cluster.endpoint: "/holdfast.coordinator.Coordinator/GetStatus",
                f"{node}:{DATA_PORT}": "/holdfast.agent.Agent/Dump"}
        bad = {"missing": None, **self.identities()}
        # The key is that of the authority, but the names are not.
        misnamed = {"cluster": cluster.issue(cluster, "elsewhere", "--role", "operator", "--cluster", "elsewhere"),
                    "role": cluster.issue(cluster, "coordinator", "--role", "coordinator", "--cluster", "test")}
        authorities = cluster.folder("n1") / "tls" / "ca.crt"
        with cluster.at("stranger"):
            for address in (*grpc, f"{node}:{PEERS_PORT}"):
                self.assertTrue(self.accepts_handshake(address, good["agent"]), address)
                for kind, identity in bad.items():
                    self.assertFalse(self.accepts_handshake(address, identity), f"{address} {kind}")
            # A frame in plain text, as of a node without certificates.
            answer = b""
            with socket.create_connection((node, PEERS_PORT), timeout=10) as plain, \
                    contextlib.suppress(ConnectionResetError):
                plain.sendall(b"HFPF" + bytes(28))
                while piece := plain.recv(4096):
                    answer += piece
            self.assertIn(b"set tls.ca, tls.cert and tls.key on all nodes", answer)
            for address, method in grpc.items():
                self.assertTrue(call(address, method, good["operator"], authorities), method)
                for kind, identity in misnamed.items():
                    self.assertFalse(call(address, method, identity, authorities), f"{method} {kind}")

    def test_a_connection_without_a_handshake_ends(self):
        cluster, node = self.cluster, self.cluster.address("n1")
        ports = (cluster.endpoint, cluster.join_address, f"{node}:{DATA_PORT}", f"{node}:{PEERS_PORT}")
        begin, open_ones = time.monotonic(), {}
        with cluster.at("stranger"):
            for address in ports:
                for sent in (b"", b"\x16\x03\x01\x02\x00\x01"):  # nothing, or the beginning of a handshake
                    host, port = address.rsplit(":", 1)
                    one = socket.create_connection((host, int(port)), timeout=20)
                    self.addCleanup(one.close)
                    one.sendall(sent)
                    open_ones[address, sent] = one
            for (address, sent), one in open_ones.items():
                with contextlib.suppress(ConnectionResetError):
                    while one.recv(4096):  # a refusal
                        pass
                self.assertLess(time.monotonic() - begin, 20, f"{address} {sent}")

    def test_clients_refuse_other_servers(self):
        cluster = self.cluster
        servers = {
            **self.identities(),
            "other host": cluster.issue(cluster, "host", "--role", "coordinator", "--cluster", "test", "--host",
                                        "10.9.8.7"),
            "role": cluster.issue(cluster, "node", "--role", "agent", "--cluster", "test", "--host", HOST),
        }
        good = cluster.issue(cluster, "good", "--role", "coordinator", "--cluster", "test", "--host", HOST)
        for kind, identity in {**servers, "good": good}.items():
            recorder = Recorder(identity)
            etc = cluster.folder("coordinator") / "etc"
            done = cluster.run("here", "--endpoint", recorder.address, "--timeout", "2s", "--tls-ca", f"{etc}/ca.crt",
                               "--tls-cert", f"{etc}/operator.pem", "--tls-key", f"{etc}/operator.pem", "status")
            recorder.close()
            self.assertNotEqual(done.returncode, 0, kind)
            # The good one, which answers nothing, gets the call.
            self.assertEqual(bytes(recorder.decrypted) != b"", kind == "good", kind)


if __name__ == "__main__":
    unittest.main(verbosity=2)
