#!/usr/bin/env python3
"""What a machine between two agents reads of a real job: nothing by default, and frames with tags where both agree."""

import re
import socket
import threading
import unittest

from cluster import HOST, ClusterTest, Listener, free_port, wait_for
from training import JOB, NODES, Training

FRAME = b"HFPF"  # the first bytes of a frame


class Tap:
    """Relays connections to an address and keeps the bytes of each."""

    def __init__(self, upstream: int):
        self.upstream = upstream
        self.connections: list[bytearray] = []
        self.listener = Listener(self.serve)
        self.port = self.listener.port

    def serve(self, client: socket.socket):
        try:
            server = socket.create_connection((HOST, self.upstream))
        except OSError:
            client.close()
            return
        seen = bytearray()
        self.connections.append(seen)
        with client, server:
            upward = threading.Thread(target=self.relay, args=(client, server, seen), daemon=True)
            upward.start()
            self.relay(server, client, seen)
            upward.join()

    @staticmethod
    def relay(one: socket.socket, other: socket.socket, seen: bytearray):
        try:
            while piece := one.recv(1 << 16):
                seen += piece
                other.sendall(piece)
        except OSError:
            pass
        for end in (one, other):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()


def frames(seen: bytearray) -> int:
    return seen.count(FRAME)


class PeersTest(ClusterTest):
    def start(self, cluster, node: str, encrypt: bool, join: bool = False) -> Tap:
        """Starts the agent, whose peers reach it through a tap."""
        port = free_port()
        tap = Tap(port)
        self.addCleanup(tap.close)
        settings = (f"peers.listen={HOST}:{port}", f"peers.advertise={HOST}:{tap.port}",
                    f"peers.encrypt={'true' if encrypt else 'false'}",
                    f"metrics.textfile={cluster.folder(node)}/agent.prom", "metrics.textfile_period_s=1")
        if join:
            cluster.add_node(node, settings=settings)
        else:
            cluster.start_agent(node, *settings)
        return tap

    def handshakes(self, cluster, node: str, mode: str) -> int:
        page = (cluster.folder(node) / "agent.prom").read_text()
        return int(re.search(rf'^holdfast_agent_peer_handshakes_total{{.*mode="{mode}"}} (\d+)$', page, re.M)[1])

    def test_frames_have_tags_only_where_both_agents_agree(self):
        cluster = self.make()
        taps = [self.start(cluster, node, encrypt=False, join=True) for node in NODES]
        cluster.await_up(*NODES)
        training = Training(cluster)
        self.addCleanup(training.stop)

        def advance(what: str):
            newest = ([0] + training.saved_steps(0))[-1]
            wait_for(lambda: training.peer_step() > newest, 40, f"tier peer advances {what}")

        advance("with tags")
        for tap in taps:
            used = [seen for seen in tap.connections if len(seen) > 10_000]
            self.assertTrue(used, "parity passes through the tap")
            for seen in used:
                self.assertEqual(seen[:2], b"\x16\x03", "each connection begins with a TLS handshake")
                self.assertIn(FRAME, seen)
                self.assertNotIn(JOB.encode(), seen[:seen.index(FRAME)], "the handshake shows no names")
        self.assertRegex(cluster.log("n1"), r"PeerConnected node=n2 peer=\S+ mode=mac")
        wait_for(lambda: self.handshakes(cluster, "n1", "mac") > 0, 5, "the metric counts tagged connections")
        for mode in ("tls", "plain"):
            self.assertEqual(self.handshakes(cluster, "n1", mode), 0)
        # One side that insists on encryption suffices.
        cluster.stop("n2")
        taps[1].close()
        taps[1] = self.start(cluster, "n2", encrypt=True)
        cluster.await_up(*NODES)
        seen_before = len(taps[0].connections)
        advance("with encryption")
        advance("with encryption, over new connections only")
        encrypted = taps[1].connections + taps[0].connections[seen_before:]
        self.assertTrue([seen for seen in encrypted if len(seen) > 10_000])
        for seen in encrypted:
            self.assertNotIn(FRAME, seen)
        self.assertRegex(cluster.log("n1"), r"PeerConnected node=n2 peer=\S+ mode=tls")
        wait_for(lambda: self.handshakes(cluster, "n1", "tls") > 0, 5, "the metric counts encrypted connections")
        self.assertTrue(training.running())
        training.stop()
        cluster.hf("verify", JOB, "--deep")

    def test_a_renewal_ends_no_connection_with_tags(self):
        cluster = self.make(certificate_s=24)
        taps = [self.start(cluster, node, encrypt=False, join=True) for node in NODES]
        cluster.await_up(*NODES)
        training = Training(cluster)
        self.addCleanup(training.stop)
        wait_for(lambda: training.peer_step() > 2, 40, "tier peer advances")

        def renewals() -> list[int]:
            return [cluster.log(node).count("CertificateRenewed") for node in NODES]

        # The connections in use before the first renewal. A connection also ends when a newer version makes the
        # parity of a version superfluous, so at least one of them must go on, and not both.
        before = []

        def begun() -> bool:
            if max(renewals()) > 0:
                return True
            before[:] = [tap.connections[-1] for tap in taps]
            return False

        wait_for(begun, 40, "an agent renews its certificate")
        wait_for(lambda: min(renewals()) >= 1, 20, "both agents renew their certificates")
        newest, sizes = ([0] + training.saved_steps(0))[-1], [frames(seen) for seen in before]
        wait_for(lambda: training.peer_step() > newest + 1, 40, "tier peer advances after the renewal")
        self.assertEqual(len(before), len(taps), "peers connect before the renewal")
        grown = [frames(seen) > size for seen, size in zip(before, sizes)]
        self.assertIn(True, grown, "a connection that is older than the renewal goes on")
        self.assertTrue(training.running())
        self.assertEqual(training.state()["aborted_total"], 0)
        for node in NODES:
            for event in ("SaveFailed", "PeerRejected", "mode=tls", "mode=plain"):
                self.assertNotIn(event, cluster.log(node))


if __name__ == "__main__":
    unittest.main(verbosity=2)
