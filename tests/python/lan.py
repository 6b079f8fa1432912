"""A virtual network of one switch with a network namespace for each node, and a cluster in it. Needs root."""

from __future__ import annotations

import os
import pathlib
import subprocess

from cluster import Cluster


def _run(*command, **options):
    subprocess.run(command, check=True, capture_output=True, text=True, **options)


class Lan:
    def __init__(self, nodes):
        self._name = f"hfpy{os.getpid()}"
        self._nodes = nodes

    @staticmethod
    def address(node):
        return f"10.78.0.{node + 1}"

    def command_at(self, node):
        return ["nsenter", f"--net=/run/netns/{self._name}n{node}"]

    def node_of(self, pid):
        """The node whose network the process uses."""
        inside = os.stat(f"/proc/{pid}/ns/net").st_ino
        return next(node for node in range(self._nodes)
                    if os.stat(f"/run/netns/{self._name}n{node}").st_ino == inside)

    def make(self):
        """Raises OSError or subprocess.CalledProcessError where the network cannot be made."""
        switch = self._name
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "lan", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "lan", "up")
        for node in range(self._nodes):
            inside = f"{switch}n{node}"
            _run("ip", "netns", "add", inside)
            _run("ip", "-n", switch, "link", "add", f"port{node}", "type", "veth",
                 "peer", "name", "eth0", "netns", inside)
            _run("ip", "-n", switch, "link", "set", f"port{node}", "master", "lan", "up")
            _run("ip", "-n", inside, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            _run("ip", "-n", inside, "link", "set", "eth0", "up")
            _run("ip", "-n", inside, "link", "set", "lo", "up")

    def remove(self):
        for name in [*(f"{self._name}n{node}" for node in range(self._nodes)), self._name]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def cut(self, node):
        """Disconnects the node from the switch. Returns the function that connects it again."""
        def plug(state):
            _run("ip", "-n", self._name, "link", "set", f"port{node}", state)
        plug("down")
        return lambda: plug("up")

    def slow_down(self, node, bytes_per_s):
        """Limits both directions of the node's link. Returns the function that ends it."""
        ends = [(self._name, f"port{node}"), (f"{self._name}n{node}", "eth0")]
        for namespace, device in ends:
            _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf",
                 "rate", f"{bytes_per_s}bps", "burst", "64kb", "latency", "1s")

        def restore():
            for namespace, device in ends:
                _run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")
        return restore


class LanCluster(Cluster):
    """A cluster whose agents, with their workers, have network namespaces. The coordinator and its
    agents use Unix sockets, which no fault of the network affects."""

    def __init__(self, nodes, **options):
        super().__init__(nodes, **options)
        self.lan = Lan(nodes)
        self._make_certificate()
        secret = self.root / "secret"
        secret.write_text("sixteen bytes or more of it")
        secret.chmod(0o400)
        self.coordinator_settings += [f"peers.group_nodes={nodes}", "peers.parity=1"]
        self.agent_settings += [f"tls.{name}={self.root}/{file}" for name, file in (
            ("ca", "ca.pem"), ("cert", "node.pem"), ("key", "node.key"))]
        self.agent_settings.append(f"peers.secret_file={secret}")
        for node in range(nodes):
            self.command_of_node[node] = self.lan.command_at(node)
            self.settings_of_node[node] = [f"peers.listen={Lan.address(node)}:7100",
                                           f"workers.address={Lan.address(node)}"]

    def _make_certificate(self):
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        names = ",".join(f"IP:{Lan.address(node)}" for node in range(self.nodes))
        (self.root / "node.ext").write_text(f"subjectAltName={names}\n")
        for command in (
                ["req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca"],
                ["req", *key, "-keyout", "node.key", "-out", "node.csr", "-subj", "/CN=node"],
                ["x509", "-req", "-in", "node.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                 "-CAcreateserial", "-extfile", "node.ext", "-out", "node.pem"]):
            _run("openssl", *command, cwd=self.root)

    def start(self):
        self.lan.make()
        return super().start()

    def stop(self):
        super().stop()
        self.lan.remove()


def limit_cpu(pid, share):
    """Limits a process to `share` of a core. Returns the function that ends it."""
    quota = int(share * 100_000)
    for root, name, text in (("/sys/fs/cgroup", "cpu.max", f"{quota} 100000"),
                             ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", str(quota))):
        group = pathlib.Path(root, f"hf-{pid}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if not (group / name).exists():  # a folder, not a control group
                raise FileNotFoundError(group / name)
            (group / name).write_text(text)
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            group.rmdir()
            continue

        def end():
            # A process that still runs returns to the group above.
            for left in (group / "cgroup.procs").read_text().split():
                (group.parent / "cgroup.procs").write_text(left)
            group.rmdir()
        return end
    raise OSError("no control group can be made")


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
