#!/usr/bin/env python3
"""A job saves every step, with peers over TLS, while certificates are renewed and the authority is replaced."""

import time
import unittest

from cluster import ClusterTest, wait_for
from training import JOB, NODES, Training

class RotationTest(ClusterTest):
    def test_a_job_saves_every_step_while_the_authority_is_replaced(self):
        cluster = self.make(certificate_s=24)
        begin = time.monotonic()
        for node in NODES:
            cluster.add_node(node)
        cluster.await_up(*NODES)
        training = Training(cluster)
        self.addCleanup(training.stop)

        def advance(after: str):
            """Waits until tier peer has a version that was saved after now."""
            newest = ([0] + training.saved_steps(0))[-1]
            try:
                wait_for(lambda: training.peer_step() > newest, 40, f"tier peer advances after {after}")
            except AssertionError as error:
                raise AssertionError(f"{error}\n{cluster.hf('status')}\n{cluster.log('n1')[-3000:]}") from None

        def rotate(step: str):
            cluster.hf("cluster", "rotate-ca", step, "--cluster", "test", *cluster.folders("coordinator"))

        def authorities(node: str) -> int:
            return (cluster.folder(node) / "tls" / "ca.crt").read_text().count("BEGIN CERT")

        def renewals() -> list[int]:
            return [cluster.log(node).count("CertificateRenewed") for node in NODES]

        advance("the start")
        # Two thirds of 24 s: each agent renews its certificate in time, and then again.
        wait_for(lambda: min(renewals()) >= 1, 40, "the agents renew their certificates")
        self.assertGreater(time.monotonic() - begin, 12, "not before it is due")
        advance("the renewal")
        rotate("begin")
        wait_for(lambda: [authorities(node) for node in NODES] == [2, 2], 20, "the agents accept both authorities")
        # As a renewal of the operator's certificate does.
        operator, state = cluster.folder("coordinator") / "etc", cluster.folder("coordinator") / "tls"
        (operator / "ca.crt").write_text((state / "ca.crt").read_text())
        advance("the second authority")
        before = renewals()
        rotate("switch")
        wait_for(lambda: all(now > old for now, old in zip(renewals(), before)), 20, "the agents renew at once")
        advance("the switch")
        cluster.hf("cluster", "issue", "--role", "operator", "--name", "admin", "--cluster", "test", "--out",
                   f"{operator}/operator.pem", *cluster.folders("coordinator"))
        rotate("finish")
        wait_for(lambda: [authorities(node) for node in NODES] == [1, 1], 20, "the agents accept the second only")
        (operator / "ca.crt").write_text((state / "ca.crt").read_text())
        advance("the end of the first authority")

        self.assertTrue(training.running(), "no trainer has ended")
        self.assertEqual(training.state()["incarnation"], 1)
        self.assertEqual(cluster.log("coordinator").count("IncarnationOpened"), 1)
        self.assertEqual(cluster.log("coordinator").count("NodeAttaching"), len(NODES), "no stream ended")
        self.assertEqual(training.state()["aborted_total"], 0)
        for rank, node in enumerate(NODES):
            steps = training.saved_steps(rank)
            self.assertEqual(steps, list(range(1, len(steps) + 1)), "every step is saved, once")
            self.assertNotIn("SaveFailed", cluster.log(node))
        # A new connection between the agents: both sides use certificates of the second authority.
        cluster.stop("n2")
        cluster.start_agent("n2")
        advance("new connections of peers")
        self.assertEqual(training.state()["incarnation"], 1)
        training.stop()
        cluster.hf("verify", JOB, "--deep")


if __name__ == "__main__":
    unittest.main(verbosity=2)
