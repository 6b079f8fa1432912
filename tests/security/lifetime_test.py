#!/usr/bin/env python3
"""Renewal without a break, revocation, replacement of the authority, and certificates of another issuer."""

import pathlib
import re
import shutil
import subprocess
import time
import unittest

from cluster import BIN, HOST, ClusterTest, call, free_port, wait_for


def serial(path) -> str:
    return subprocess.run(["openssl", "x509", "-in", path, "-noout", "-serial"], check=True, capture_output=True,
                          text=True).stdout


def verified(authority, path) -> bool:
    return subprocess.run(["openssl", "verify", "-CAfile", authority, path], check=False,
                          capture_output=True).returncode == 0


class LifetimeTest(ClusterTest):
    def test_certificates_are_renewed_without_a_break(self):
        cluster = self.make(certificate_s=12)
        cluster.add_node("n1")
        cluster.await_up("n1")
        attached = cluster.log("coordinator").count("NodeAttaching")
        own = pathlib.Path(cluster.folder("coordinator") / "tls" / "coordinator.pem")
        first = serial(cluster.identity("n1")), serial(own)
        keys = {cluster.identity("n1").read_text().split("PRIVATE KEY")[1]}
        begin = time.monotonic()
        while time.monotonic() - begin < 20:  # the first certificates have ended long before
            self.assertEqual(cluster.nodes_up(), {"n1"})
            keys.add(cluster.identity("n1").read_text().split("PRIVATE KEY")[1])
            time.sleep(0.5)
        self.assertNotEqual(first[0], serial(cluster.identity("n1")))
        self.assertGreater(len(keys), 1, "each certificate has a new key")
        self.assertGreaterEqual(cluster.log("n1").count("CertificateRenewed"), 2)
        self.assertEqual(cluster.log("coordinator").count("NodeAttaching"), attached, "the stream never ended")
        # New connections use the new certificates: a new agent process attaches long after the first ones ended.
        cluster.stop("n1")
        cluster.start_agent("n1")
        cluster.await_up("n1")

    def test_a_relay_renews_its_certificate(self):
        cluster = self.make(certificate_s=12)
        folder = cluster.folder("relay")
        identity, authorities = folder / "relay.pem", folder / "ca.crt"
        folder.mkdir()
        shutil.copy(cluster.folder("coordinator") / "tls" / "ca.crt", authorities)
        cluster.hf("cluster", "issue", "--role", "relay", "--name", "relay", "--host", HOST, "--cluster", "test",
                   "--valid", "12s", "--out", str(identity), *cluster.folders("coordinator"))
        address = f"{HOST}:{free_port()}"
        config = folder / "relay.toml"
        config.write_text(f'cluster = "test"\nrole = "relay"\nlisten = "{address}"\n'
                          f'upstream = ["{cluster.endpoint}"]\n\n[tls]\nca = "{authorities}"\ncert = "{identity}"\n'
                          f'key = "{identity}"\nrenew = true\n')
        cluster.start("relay", "holdfast-coordinator", config=config)
        cluster.await_log("relay", "CoordinatorAttached")
        agents = f"coordinator={address},{cluster.endpoint}"
        cluster.add_node("n1", settings=(agents,))
        cluster.await_up("n1")
        attached = cluster.log("coordinator").count("NodeAttaching")
        first = serial(identity)
        begin = time.monotonic()
        while time.monotonic() - begin < 20:  # the first certificate has ended long before
            self.assertEqual(cluster.nodes_up(), {"n1"})
            time.sleep(0.5)
        self.assertNotEqual(first, serial(identity))
        self.assertEqual(cluster.log("coordinator").count("NodeAttaching"), attached, "the stream never ended")
        # A new agent process accepts the new certificate, which is good for the same address.
        cluster.stop("n1")
        cluster.start_agent("n1", agents)
        wait_for(lambda: cluster.log("coordinator").count("NodeAttaching") > attached, 20, "the new process attaches")
        last = re.findall("NodeAttaching .*", cluster.log("coordinator"))[-1]
        self.assertIn(address, last, "through the relay")
        # A renewal replaces the file of the authorities, so that file must not hold the certificate, too.
        refused = subprocess.run([BIN / "holdfast-coordinator", "--config", config, "--check-config", "--set",
                                  f"tls.ca={identity}"], check=False, capture_output=True, text=True, timeout=20)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("tls.ca must be another file", refused.stderr)

    def test_a_revoked_node_is_out_within_five_seconds_and_may_join_again(self):
        cluster = self.make()
        for node in ("n1", "n2"):
            cluster.add_node(node)
        cluster.await_up("n1", "n2")
        begin = time.monotonic()
        cluster.hf("revoke", "agent", "n2", "--yes", "--why", "stolen")
        wait_for(lambda: cluster.nodes_up() == {"n1"}, 5, "the revoked node is out")
        self.assertLess(time.monotonic() - begin, 5)
        wait_for(lambda: "RevokedNamesChanged" in cluster.log("n1"), 5, "the other node knows")
        self.assertRegex(cluster.hf("certificates"), r"agent +n2 +revoked .*stolen")
        # It stays out, also after restarts of both sides, and gets no new certificate.
        cluster.stop("n2")
        cluster.stop("coordinator")
        cluster.start_coordinator()
        cluster.start_agent("n2")
        cluster.await_log("n2", "(revoked) has no role")
        cluster.await_up("n1")
        self.assertEqual(cluster.nodes_up(), {"n1"})
        cluster.stop("n2")
        done = cluster.join("n2", cluster.token("--node", "n2"))
        self.assertEqual(done.returncode, 0, done.stderr)
        cluster.start_agent("n2")
        cluster.await_up("n1", "n2")

    def test_a_revoked_operator_may_do_nothing(self):
        cluster = self.make()
        data = f"{HOST}:{free_port()}"
        cluster.add_node("n1", settings=(f"data_listen={data}",))
        self.assertEqual(cluster.join("bob", cluster.token("--node", "bob", role="operator")).returncode, 0)
        cluster.hf("certificates", machine="bob")

        def dumps(name: str) -> bool:
            return call(data, "/holdfast.agent.Agent/Dump", cluster.folder(name) / "etc" / "operator.pem",
                        cluster.folder("n1") / "tls" / "ca.crt")

        self.assertTrue(dumps("bob"))
        begin = time.monotonic()
        cluster.hf("revoke", "operator", "bob", "--yes")
        wait_for(lambda: cluster.run("bob", "status").returncode != 0, 5, "the operator is refused")
        wait_for(lambda: not dumps("bob"), 5, "an agent refuses the operator, too")
        self.assertLess(time.monotonic() - begin, 5)
        self.assertTrue(dumps("coordinator"), "another operator is not affected")
        self.assertIn("(revoked) has no role", cluster.run("bob", "certificates").stderr)
        self.assertIn("join again with a new token", cluster.run("bob", "certificates").stderr)
        cluster.hf("certificates")  # the other operator is not affected

    def test_a_fault_injector_refuses_revoked_names_and_ends_when_it_is_revoked(self):
        cluster = self.make()
        cluster.add_node("n1")
        for name in ("bob", "eve"):
            done = cluster.join(name, cluster.token("--node", name, role="operator"))
            self.assertEqual(done.returncode, 0, done.stderr)
        cluster.hf("revoke", "operator", "eve", "--yes")  # before the injector starts
        address = cluster.start_injector("n1")
        authorities = cluster.folder("n1") / "tls" / "ca.crt"

        def accepted(name) -> bool:
            return call(address, "/holdfast.faults.FaultInjector/End",
                        cluster.folder(name) / "etc" / "operator.pem", authorities)

        wait_for(lambda: not accepted("eve"), 5, "a name that was revoked earlier is refused")
        self.assertTrue(accepted("bob"))
        cluster.hf("revoke", "operator", "bob", "--yes")
        wait_for(lambda: not accepted("bob"), 5, "the revoked operator is refused")
        wait_for(lambda: not accepted("bob") and "operator/bob (revoked)" in cluster.log("n1-fault"), 5,
                 "the log names the caller")  # at most one line a second
        self.assertTrue(accepted("coordinator"), "another operator is not affected")
        # Without a coordinator, the list stays.
        cluster.stop("coordinator")
        self.assertFalse(accepted("bob"))
        self.assertTrue(accepted("coordinator"))
        cluster.start_coordinator()
        # The injector's own identity.
        injector = cluster.processes.pop("n1-fault")
        cluster.hf("revoke", "agent", "n1", "--yes")
        self.assertEqual(injector.wait(timeout=5), 1)
        self.assertIn("refuses this injector's certificate", cluster.log("n1-fault"))
        with self.assertRaises(OSError):
            accepted("coordinator")

    def test_the_authority_is_replaced_while_the_cluster_runs(self):
        cluster = self.make()
        cluster.add_node("n1")
        cluster.await_up("n1")
        attached = cluster.log("coordinator").count("NodeAttaching")
        state = cluster.folder("coordinator") / "tls"
        before = (state / "ca.crt").read_text()
        old = cluster.root / "old.crt"
        old.write_text(before)

        def rotate(step):
            return cluster.hf("cluster", "rotate-ca", step, "--cluster", "test", *cluster.folders("coordinator"))

        rotate("begin")
        node_ca = cluster.folder("n1") / "tls" / "ca.crt"
        wait_for(lambda: node_ca.read_text().count("BEGIN CERT") == 2, 10, "the node accepts both authorities")
        self.assertIn("already accepted", rotate("begin"))
        operator_ca = cluster.folder("coordinator") / "etc" / "ca.crt"
        operator_ca.write_text((state / "ca.crt").read_text())  # as a renewal of the operator does
        rotate("switch")
        wait_for(lambda: not verified(old, cluster.identity("n1")), 10, "the node has a certificate of the new one")
        wait_for(lambda: not verified(old, state / "coordinator.pem"), 10, "the coordinator, too")
        # An operator whose certificate is of the old authority works until the end.
        wait_for(lambda: cluster.run("coordinator", "status").returncode == 0, 5, "the old operator works")
        rotate("finish")
        wait_for(lambda: node_ca.read_text().count("BEGIN CERT") == 1, 10, "the node accepts the new one only")
        self.assertNotEqual(node_ca.read_text(), before)
        time.sleep(2)  # servers read files once a second
        refused = cluster.run("coordinator", "--timeout", "3s", "status")
        self.assertNotEqual(refused.returncode, 0, "a certificate of the old authority is refused")
        cluster.hf("cluster", "issue", "--role", "operator", "--name", "admin", "--cluster", "test", "--out",
                   f"{cluster.folder('coordinator')}/etc/operator.pem", *cluster.folders("coordinator"))
        operator_ca.write_text((state / "ca.crt").read_text())
        self.assertEqual(cluster.nodes_up(), {"n1"})
        self.assertEqual(cluster.log("coordinator").count("NodeAttaching"), attached, "the stream never ended")
        cluster.add_node("n2")
        cluster.await_up("n1", "n2")

    def test_certificates_of_another_issuer(self):
        """As cert-manager, Vault or step-ca issue them: separate files for key and certificate, which the issuer
        replaces. The authority is made with openssl."""
        cluster = self.make()
        state, etc = cluster.folder("coordinator") / "tls", cluster.folder("coordinator") / "etc"
        folder = cluster.folder("n1") / "tls"
        folder.mkdir(parents=True)

        def ssl(*arguments):
            subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

        ssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-subj", "/CN=foreign",
            "-days", "2", "-keyout", "foreign.key", "-out", "foreign.crt")

        def issue(key):
            (folder / "extensions").write_text(
                f"subjectAltName=DNS:n1,IP:{HOST},URI:spiffe://test/agent/n1\n"
                "extendedKeyUsage=serverAuth,clientAuth\n")
            ssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-subj", "/CN=n1",
                "-keyout", key, "-out", "request")
            ssl("x509", "-req", "-in", "request", "-CA", "foreign.crt", "-CAkey", "foreign.key", "-days", "1",
                "-extfile", "extensions", "-out", "next.crt")
            (folder / "next.crt").rename(folder / "n1.crt")

        issue("n1.key")
        both = (state / "ca.crt").read_text() + (folder / "foreign.crt").read_text()
        (state / "ca.crt").write_text(both)
        (folder / "ca.crt").write_text(both)
        config = cluster.folder("n1") / "etc"
        config.mkdir()
        (config / "agent.toml").write_text(
            f'cluster = "test"\nnode = "n1"\ncoordinator = "{cluster.endpoint}"\n\n[tls]\nca = "{folder}/ca.crt"\n'
            f'cert = "{folder}/n1.crt"\nkey = "{folder}/n1.key"\n')
        time.sleep(2)  # the coordinator reads its file once a second
        cluster.start_agent("n1")
        cluster.await_up("n1")
        # The name decides: another node's name is refused.
        (config / "agent.toml").write_text((config / "agent.toml").read_text().replace('node = "n1"', 'node = "n2"'))
        cluster.stop("n1")
        cluster.start_agent("n1")
        cluster.await_log("coordinator", "AttachRefused")
        self.assertIn("may not act for node 'n2'", cluster.log("coordinator"))
        # A revocation works without the issuer.
        cluster.hf("revoke", "agent", "n1", "--yes")
        self.assertTrue(re.search(r"agent +n1 +revoked", cluster.hf("certificates")))
        self.assertTrue(etc.exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
