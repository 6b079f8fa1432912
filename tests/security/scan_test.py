#!/usr/bin/env python3
"""Scans every TLS port with `openssl s_client`: only TLS 1.2 and 1.3 with strong cipher suites are accepted."""

import os
import pathlib
import re
import socket
import struct
import subprocess
import tempfile
import unittest

from cluster import HOST, Cluster, ClusterTest, free_port, wait_for

# Authenticated encryption and forward secrecy, by the names of OpenSSL.
STRONG = {
    "TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256",
    "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-CHACHA20-POLY1305",
}
OLD_VERSIONS = ("-tls1", "-tls1_1")
# Suites that OpenSSL 3 cannot offer, by their numbers: NULL, EXPORT, RC4, DES, 3DES and anonymous.
REMOVED_SUITES = [*range(0x0000, 0x001C), *range(0x0060, 0x0067), 0x0080, 0x0081, 0x0082, 0x0083, 0x008A, 0x008E, 0x0092,
                  0xC001, 0xC002, 0xC006, 0xC007, 0xC00B, 0xC00C, 0xC010, 0xC011, 0xC015, 0xC016]
TLS_1_2 = 0x0303
ALERT, HANDSHAKE = 21, 22


class Port:
    """One port, and how a client that shows the certificate `identity` scans it."""

    def __init__(self, name: str, address: str, identity: pathlib.Path):
        self.name = name
        self.address = address
        self.identity = identity

    def accepted(self, *options: str) -> str:
        """Tries one handshake. Returns the protocol and the cipher suite, or "" when the server refuses."""
        done = subprocess.run(
            ["openssl", "s_client", "-connect", self.address, "-cert", self.identity, "-key", self.identity, *options],
            input="", capture_output=True, text=True, timeout=20, check=False)
        offered = "no ciphers available" not in done.stderr and "no protocols available" not in done.stderr
        assert "connect:errno" not in done.stderr, f"{self.name}: {done.stderr}"
        assert offered, f"{self.name} {options}: this openssl offers nothing: {done.stderr}"
        found = re.search(r"New, (TLSv[\d.]+), Cipher is (\S+)", done.stdout)
        return f"{found[1]} {found[2]}" if found else ""

    def accepted_suites(self, version: str, option: str, offered: list[str], suffix: str = "") -> set[str]:
        """Returns all suites of `offered` that the server accepts: each one accepted is offered no more."""
        suites, left = set(), list(offered)
        while left:
            answer = self.accepted(version, option, ":".join(left) + suffix)
            if not answer:
                break
            suite = answer.split()[1]
            suites.add(suite)
            left.remove(suite)
        return suites

    def answer_to(self, version: int, suites: list[int]) -> int:
        """Sends a ClientHello with suites given by number. Returns the type of the record that answers; 0: none."""
        def sized(size: str, content: bytes) -> bytes:
            return struct.pack(size, len(content)) + content

        extensions = b"".join(struct.pack(">H", kind) + sized(">H", content) for kind, content in (
            (10, sized(">H", struct.pack(">2H", 23, 24))),                      # groups P-256 and P-384
            (11, b"\x01\x00"),                                                  # points without compression
            (13, sized(">H", struct.pack(">4H", 0x0403, 0x0804, 0x0401, 0x0201)))))  # signatures, also RSA with SHA-1
        hello = (struct.pack(">H", version) + os.urandom(32) + b"\x00" +
                 sized(">H", struct.pack(f">{len(suites)}H", *suites)) + b"\x01\x00" + sized(">H", extensions))
        message = b"\x01" + struct.pack(">I", len(hello))[1:] + hello
        host, port = self.address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(struct.pack(">BHH", HANDSHAKE, 0x0301, len(message)) + message)
            try:
                answer = connection.recv(1)
            except ConnectionResetError:
                return 0
        return answer[0] if answer else 0


def suites_of_openssl(ciphers: str) -> list[str]:
    return subprocess.run(["openssl", "ciphers", ciphers], check=True, capture_output=True,
                          text=True).stdout.strip().split(":")


def make_rsa(cluster: Cluster, path: pathlib.Path):
    """Replaces a certificate with one of the same authority and the same names that has an RSA key, so that the
    server could also accept suites with RSA."""
    with tempfile.TemporaryDirectory() as folder:
        def ssl(*arguments) -> str:
            return subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder, text=True).stdout

        names = ssl("x509", "-in", path, "-noout", "-ext", "subjectAltName").splitlines()[1].strip()
        names = names.replace("IP Address:", "IP:")
        (pathlib.Path(folder) / "extensions").write_text(
            f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
        tls = cluster.folder("coordinator") / "tls"
        ssl("req", "-new", "-newkey", "rsa:2048", "-noenc", "-subj", "/CN=scanned", "-keyout", "key", "-out", "request")
        ssl("x509", "-req", "-in", "request", "-CA", tls / "ca.crt", "-CAkey", tls / "ca.key", "-days", "1", "-extfile",
            "extensions", "-out", "certificate")
        path.write_bytes(b"".join((pathlib.Path(folder) / name).read_bytes() for name in ("certificate", "key")))


class ScanTest(ClusterTest):
    def start_all(self, cluster: Cluster, key: str) -> list[Port]:
        """Starts all servers with all their TLS ports, with certificates for keys of the kind `key`."""
        done = cluster.join("n1", cluster.token("--node", "n1"))
        self.assertEqual(done.returncode, 0, done.stderr)
        cluster.stop("coordinator")
        own, node = cluster.folder("coordinator") / "tls" / "coordinator.pem", cluster.identity("n1")
        if key == "rsa":
            make_rsa(cluster, own)
            make_rsa(cluster, node)
        token = cluster.root / "token"
        token.write_text("a" * 32)
        token.chmod(0o600)
        addresses = {name: f"{HOST}:{free_port()}" for name in (
            "coordinator metrics", "page", "agent data", "peers", "agent metrics", "fault injector")}
        cluster.start("coordinator", "holdfast-coordinator", f"data_dir={cluster.folder('coordinator')}/data",
                      f"metrics.listen={addresses['coordinator metrics']}", f"metrics.token_file={token}",
                      f"ui.listen={addresses['page']}", f"ui.token_file={token}")
        folder = cluster.folder("n1")
        cluster.start("n1", "holdfast-agent", f"run_dir={folder}/run", f'data_dirs=["{folder}/data"]',
                      "arena.bytes=64MiB", f"data_listen={addresses['agent data']}",
                      f"peers.listen={addresses['peers']}", f"metrics.listen={addresses['agent metrics']}",
                      f"metrics.token_file={token}", "io.io_uring=false")
        injector = cluster.folder("n1-faults")
        injector.mkdir()
        (injector / "fault.toml").write_text(
            f'cluster = "test"\nnode = "n1"\nlisten = "{addresses["fault injector"]}"\nrun_dir = "{injector}/run"\n'
            f'agent_run_dir = "{folder}/run"\ndata_dirs = ["{folder}/data"]\ncoordinator = "{cluster.endpoint}"\n'
            f'[drills]\nenabled = true\n[tls]\nca = "{folder}/tls/ca.crt"\ncert = "{node}"\nkey = "{node}"\n')
        cluster.start("n1-faults", "holdfast-fault", config=f"{injector}/fault.toml")
        addresses |= {"coordinator": cluster.endpoint, "join": cluster.join_address}
        for name, address in addresses.items():
            wait_for(lambda at=address: self.listens(at), 20, f"{name} listens at {address}")
        cluster.await_up("n1")
        return [Port(name, address, node) for name, address in sorted(addresses.items())]

    @staticmethod
    def listens(address: str) -> bool:
        host, port = address.rsplit(":", 1)
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            return True
        except OSError:
            return False

    def scan(self, key: str):
        all_suites = suites_of_openssl("ALL:eNULL:@SECLEVEL=0")
        tls_1_2 = [suite for suite in all_suites if not suite.startswith("TLS_")]
        self.assertGreater(len(tls_1_2), 100, "this openssl offers weak suites")
        tls_1_3 = sorted({suite for suite in all_suites if suite.startswith("TLS_")} |
                         {"TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256"})
        for port in self.start_all(self.make(), key):
            with self.subTest(port=port.name, key=key):
                for version in OLD_VERSIONS:
                    self.assertEqual(port.accepted(version, "-cipher", "ALL:@SECLEVEL=0"), "", version)
                # The versions 2.0 and 3.0 of SSL, and 1.0 and 1.1 of TLS, with every suite that any version had.
                for version in (0x0200, 0x0300, 0x0301, 0x0302):
                    self.assertIn(port.answer_to(version, [*range(0x0001, 0x00A0), *range(0xC001, 0xC0B0)]), (0, ALERT))
                self.assertIn(port.answer_to(TLS_1_2, REMOVED_SUITES), (0, ALERT), "a suite that OpenSSL removed")
                accepted = port.accepted_suites("-tls1_2", "-cipher", tls_1_2, ":@SECLEVEL=0")
                accepted |= port.accepted_suites("-tls1_3", "-ciphersuites", tls_1_3)
                print(f"{port.name} ({key}): {' '.join(sorted(accepted))}")
                self.assertEqual(accepted - STRONG, set(), "weak suites")
                self.assertIn("TLS_AES_128_GCM_SHA256", accepted, "the port accepts strong suites")

    def test_ports_with_keys_of_elliptic_curves(self):
        self.scan("ec")

    def test_ports_with_rsa_keys(self):
        self.scan("rsa")


if __name__ == "__main__":
    unittest.main(verbosity=2)
