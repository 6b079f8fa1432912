#!/usr/bin/env python3
"""Joins with tokens: what is written, the four refusals, a man in the middle, crashes and races."""

import concurrent.futures
import pathlib
import re
import resource
import socket
import ssl
import stat
import subprocess
import time
import unittest

from cluster import BIN, HOST, ClusterTest, Listener, wait_for


def openssl(*arguments, **options) -> str:
    return subprocess.run(["openssl", *arguments], check=True, capture_output=True, text=True, **options).stdout


def mode(path) -> int:
    return stat.S_IMODE(pathlib.Path(path).stat().st_mode)


class Recorder:
    """A TLS server with the certificate of a file, which keeps every byte that it decrypts. In front of it, a relay
    keeps every byte of the network. The server answers nothing."""

    def __init__(self, identity: pathlib.Path):
        self.network, self.decrypted, self.handshakes = bytearray(), bytearray(), 0
        self._begun, self._ended = 0, 0  # connections
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(identity)
        context.set_alpn_protocols(["h2"])
        self._context = context
        self._listener = Listener(self._serve)
        self.address = f"{HOST}:{self._listener.port}"

    def _serve(self, client):
        self._begun += 1
        inside, outside = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = self._context.wrap_bio(inside, outside, server_side=True)
        client.settimeout(5)
        done = False
        try:
            while True:
                try:
                    if not done:
                        tls.do_handshake()
                        done = True
                        self.handshakes += 1
                    while True:
                        self.decrypted += tls.read(65536)
                except ssl.SSLWantReadError:
                    pass
                client.sendall(outside.read())
                received = client.recv(65536)
                if not received:
                    return
                self.network += received
                inside.write(received)
        except (OSError, ssl.SSLError):
            return
        finally:
            client.close()
            self._ended += 1

    def close(self):
        """Returns once the server has read what the client sent before it closed the connection."""
        wait_for(lambda: 0 < self._begun == self._ended, 30, "the end of the connections")
        self._listener.close()


class JoinTest(ClusterTest):
    def test_a_node_joins_with_a_key_that_never_leaves_it(self):
        cluster = self.make()
        token = cluster.token("--node", "n1")
        self.assertRegex(token, r"^holdfast1\.[0-9a-f]{64}\.[0-9a-f]{16}\.[0-9a-f]{32}$")
        self.assertIn(token.split(".")[1], cluster.init_output)
        state = cluster.folder("coordinator") / "tls"
        for secret in (state / "ca.key", state / "coordinator.pem", cluster.folder("coordinator/etc/operator.pem")):
            self.assertEqual(mode(secret), 0o600, secret)
        cluster.add_node("n1", token)
        cluster.await_up("n1")
        # The certificate has the name and the key of the file, and lives a day.
        identity = cluster.identity("n1")
        self.assertEqual(mode(identity), 0o600)
        text = openssl("x509", "-in", identity, "-noout", "-text")
        self.assertIn("URI:spiffe://test/agent/n1", text)
        self.assertEqual(openssl("x509", "-in", identity, "-noout", "-pubkey"),
                         openssl("pkey", "-in", identity, "-pubout"))
        openssl("x509", "-in", identity, "-noout", "-checkend", "86000")
        with self.assertRaises(subprocess.CalledProcessError):
            openssl("x509", "-in", identity, "-noout", "-checkend", "86500")
        # Neither the key nor the secret is anywhere on the coordinator's machine.
        key = re.search(r"KEY-----\n(.*?)\n", identity.read_text())[1].encode()
        for path in cluster.folder("coordinator").rglob("*"):
            if not path.is_file():
                continue
            data = path.read_bytes()
            self.assertNotIn(key, data, path)
            self.assertNotIn(cluster.secrets[0].encode(), data, path)
        # The audit log has who created the token.
        self.assertIn("spiffe://test/operator/admin", cluster.hf("audit", "-o", "json"))

    def test_four_refusals_differ_and_leave_the_token_as_it_was(self):
        cluster = self.make()
        other = self.make(name="other")
        refused = {}

        def refuse(kind, machine, token, *arguments, **options):
            done = cluster.join(machine, token, *arguments, **options)
            self.assertNotEqual(done.returncode, 0, kind)
            self.assertFalse((cluster.folder(machine) / "tls" / "agent.pem").exists(), kind)
            for secret in cluster.secrets + other.secrets:
                self.assertNotIn(secret, done.stderr + done.stdout + cluster.log("coordinator"))
            refused[kind] = (done.returncode, done.stderr.splitlines()[0])

        bound = cluster.token("--node", "n1")
        refuse("wrong node", "n2", bound)
        refuse("wrong CA", "n3", other.token("--node", "n3"))
        self.assertEqual(cluster.join("n1", bound).returncode, 0)  # the refusals have not used the token
        refuse("used", "n4", bound)
        refuse("expired", "n5", self.expired(cluster))
        damaged = bound[:-1] + ("0" if bound[-1] != "0" else "1")
        refuse("unknown", "n6", damaged)
        refuse("malformed", "n7", "holdfast1.00")
        expected = {"wrong node": "wrong node: the token is for agent 'n1', and this machine joins as 'n2'",
                    "wrong CA": "wrong CA: the server's certificate is not of the authority",
                    "used": "used token: 'n1' joined with this token", "expired": "expired token: it was valid until",
                    "unknown": "unknown token", "malformed": "not of the form holdfast1.HASH.ID.SECRET"}
        for kind, text in expected.items():
            self.assertIn(text, refused[kind][1])
        self.assertEqual(len({text for _, text in refused.values()}), len(refused))

    @staticmethod
    def expired(cluster):
        token = cluster.token("--ttl", "1s")
        time.sleep(1.2)
        return token

    def test_a_man_in_the_middle_gets_no_byte_of_the_secret(self):
        cluster = self.make()
        other = self.make(name="test")  # an authority with the same names
        token = cluster.token("--node", "n1")
        secret = token.rsplit(".", 1)[1].encode()
        thief = cluster.root / "thief.pem"
        cases = {
            # Another authority, whose certificate has the coordinator's name and address.
            "wrong CA": other.folder("coordinator") / "tls" / "coordinator.pem",
            # A node of the cluster, with a certificate for the coordinator's address.
            "not of a coordinator": thief,
        }
        cluster.hf("cluster", "issue", "--role", "agent", "--name", "thief", "--host", HOST, "--cluster", "test",
                   "--out", str(thief), *cluster.folders("coordinator"))
        for text, identity in cases.items():
            recorder = Recorder(identity)
            done = cluster.join("n1", token, address=recorder.address)
            recorder.close()
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(text, done.stderr)
            self.assertGreater(recorder.handshakes, 0, "the handshake was not completed, so the test shows nothing")
            self.assertGreater(len(recorder.network), 200)
            self.assertEqual(bytes(recorder.decrypted), b"", text)
            for form in (secret, bytes.fromhex(secret.decode()), token.encode()):
                self.assertNotIn(form, bytes(recorder.network), text)
        # The recorder sees what a client without these checks sends, so it can fail.
        recorder = Recorder(cases["wrong CA"])
        plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        plain.check_hostname, plain.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(recorder.address.split(":")) as raw, plain.wrap_socket(raw) as careless:
            careless.sendall(secret)
            time.sleep(0.3)
        recorder.close()
        self.assertIn(secret, bytes(recorder.decrypted))
        self.assertEqual(cluster.join("n1", token).returncode, 0)  # and the token still works

    def test_a_token_works_once_across_a_crash(self):
        cluster = self.make()
        used, fresh = cluster.token("--node", "n1"), cluster.token("--node", "n2")
        self.assertEqual(cluster.join("n1", used).returncode, 0)
        cluster.stop("coordinator")  # SIGKILL
        cluster.start_coordinator()
        again = cluster.join("n3", used)
        self.assertIn("used token", again.stderr)
        self.assertEqual(cluster.join("n2", fresh).returncode, 0)

    def test_a_token_is_read_from_stdin(self):
        cluster = self.make()
        token = cluster.token("--node", "n1")
        at = ("join", cluster.join_address, "-", "--name", "n1", "--address", HOST, *cluster.folders("n1"))
        for wrong in ("", "\n", "holdfast1.00\n"):
            done = cluster.run("n1", *at, stdin=wrong)
            self.assertNotEqual(done.returncode, 0, wrong)
        done = cluster.run("n1", *at, stdin=token + "\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(cluster.identity("n1").exists())

    def test_a_core_dump_of_a_join_has_no_memory(self):
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        self.assertNotEqual(hard, 0, "the test sees no change of the limit")
        join = subprocess.Popen([BIN / "holdfast", "join", f"{HOST}:1", "-"], stdin=subprocess.PIPE,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (hard, hard)))
        proc = pathlib.Path("/proc", str(join.pid))
        try:
            # The command waits for the token.
            wait_for(lambda: (proc / "coredump_filter").read_text() == "00000000\n", 10, "no memory is dumped")
            self.assertRegex((proc / "limits").read_text(), r"Max core file size +0 ")
        finally:
            join.kill()
            join.communicate()

    def test_one_of_many_machines_gets_a_token(self):
        cluster = self.make()
        token = cluster.token()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            done = list(pool.map(lambda i: cluster.join(f"m{i}", token), range(8)))
        self.assertEqual(sorted(one.returncode == 0 for one in done), [False] * 7 + [True])
        for one in done:
            self.assertTrue(one.returncode == 0 or "used token" in one.stderr, one.stderr)

    def test_a_token_without_a_node_takes_no_name_that_is_in_use(self):
        cluster = self.make()
        self.assertEqual(cluster.join("n1", cluster.token()).returncode, 0)
        second = cluster.token()
        self.assertIn("agent 'n1' has a certificate until", cluster.join("n1", second).stderr)
        self.assertEqual(cluster.join("n2", second).returncode, 0)
        # The same machine again, installed again: the token names it.
        self.assertEqual(cluster.join("n1", cluster.token("--node", "n1")).returncode, 0)

    def test_the_join_listener_has_no_other_method_and_the_others_need_a_certificate(self):
        cluster = self.make()
        token = cluster.token("--node", "n1")
        status = cluster.run("stranger", "--endpoint", cluster.join_address, "--tls-ca",
                             f"{cluster.folder('coordinator')}/tls/ca.crt", "--tls-cert",
                             f"{cluster.folder('coordinator')}/etc/operator.pem", "--tls-key",
                             f"{cluster.folder('coordinator')}/etc/operator.pem", "status")
        self.assertNotEqual(status.returncode, 0)
        # The other way round: a join at the coordinator's own address is refused by TLS.
        done = cluster.join("n1", token, "--timeout", "3s", address=cluster.endpoint)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(cluster.join("n1", token).returncode, 0)

    def test_roles(self):
        cluster = self.make()
        viewer = cluster.join("eve", cluster.token("--node", "eve", role="viewer"))
        self.assertEqual(viewer.returncode, 0, viewer.stderr)
        self.assertIn("0 jobs", cluster.run("eve", "status").stdout)
        for command in (("token", "create", "--role", "agent"), ("revoke", "agent", "n1"), ("certificates",)):
            done = cluster.run("eve", *command)
            self.assertIn("needs the role operator", done.stderr, command)
        bob = cluster.join("bob", cluster.token("--node", "bob", role="operator"))
        self.assertEqual(bob.returncode, 0, bob.stderr)
        names = cluster.hf("certificates", machine="bob")
        self.assertRegex(names, r"viewer +eve +valid")

    def test_init_does_not_replace_an_authority(self):
        cluster = self.make()
        again = cluster.run("coordinator", "cluster", "init", "--listen", cluster.endpoint,
                            *cluster.folders("coordinator"))
        self.assertNotEqual(again.returncode, 0)
        self.assertIn("is the key of a cluster's authority", again.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
