"""A cluster of real processes on loopback, made with `holdfast cluster init`, `token create` and `join`."""

import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
import unittest

BIN = pathlib.Path(os.environ.get("HOLDFAST_BIN_DIR", "build/dev/bin")).resolve()
HOST = "127.0.0.1"


def free_port() -> int:
    """Returns a port that nothing listens at. Not in the range from which the system takes ports of clients."""
    low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(200):
        port = 10_000 + int.from_bytes(os.urandom(2), "big") % (low - 10_000)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
                return port
            except OSError:
                continue
    raise RuntimeError("no free port")


def wait_for(condition, seconds: float, what: str):
    """Returns the first true value of `condition`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"after {seconds} s: {what}")


def call(address: str, method: str, identity: pathlib.Path, authorities: pathlib.Path) -> bool:
    """Calls a gRPC method with an empty request. Returns whether the server answers with a message: a call that the
    server refuses gets a status only."""
    host, port = address.rsplit(":", 1)
    context = ssl.create_default_context(cafile=authorities)
    context.load_cert_chain(identity)
    context.set_alpn_protocols(["h2"])

    def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
        return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    def header(name: str, value: str) -> bytes:  # a literal that the receiver does not index
        return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()

    headers = b"".join(header(*one) for one in (
        (":method", "POST"), (":scheme", "https"), (":path", method), (":authority", address),
        ("content-type", "application/grpc"), ("te", "trailers")))
    request = (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(1, 4, 1, headers) +
               frame(0, 1, 1, bytes(5)))
    with socket.create_connection((host, int(port)), timeout=10) as plain, \
            context.wrap_socket(plain, server_hostname=host) as connection:
        connection.sendall(request)
        stream = connection.makefile("rb")
        while True:
            head = stream.read(9)
            assert len(head) == 9, "the server ended the connection"
            payload = stream.read(int.from_bytes(head[:3], "big"))
            kind, flags, number = struct.unpack(">BBI", head[3:])
            if kind == 0 and number == 1 and payload:
                return True
            if kind in (1, 3) and number == 1 and (kind == 3 or flags & 1):
                return False


class Listener:
    """Listens at a free port of loopback and serves each connection in its own thread."""

    def __init__(self, serve):
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(serve,), daemon=True).start()

    def _accept(self, serve):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    def close(self):
        self._listener.close()


class Cluster:
    """One coordinator and its nodes. `root` has a folder for each machine."""

    def __init__(self, root: pathlib.Path, name: str = "test", certificate_s: int = 86_400,
                 settings: tuple[str, ...] = ()):
        self.root = root
        self.name = name
        self.certificate_s = certificate_s
        self.settings = settings
        self.endpoint = f"{self.address('coordinator')}:{free_port()}"
        self.join_address = f"{self.address('coordinator')}:{free_port()}"
        self.processes = {}
        self.secrets = []
        done = self.run("coordinator", "cluster", "init", "--listen", self.endpoint, "--join-listen",
                        self.join_address, "--cluster", name, "--host", "localhost", *self.folders("coordinator"))
        assert done.returncode == 0, done.stderr
        self.init_output = done.stdout

    def address(self, _machine: str) -> str:
        return HOST

    def prefix(self, _machine: str) -> list[str]:
        """The command that runs a program on the machine."""
        return []

    def folder(self, machine: str) -> pathlib.Path:
        return self.root / machine

    def folders(self, machine: str) -> list[str]:
        return ["--config-dir", f"{self.folder(machine)}/etc", "--state-dir", f"{self.folder(machine)}/tls"]

    def run(self, machine: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess:
        """Runs the command as on a machine, with the configuration that is there."""
        self.folder(machine).mkdir(parents=True, exist_ok=True)
        config = self.folder(machine) / "etc" / "cli.toml"
        options_file = ["--config", config] if config.exists() else []
        return subprocess.run([*self.prefix(machine), BIN / "holdfast", *options_file, *arguments],
                              input=stdin, capture_output=True, text=True, timeout=60, check=False)

    def hf(self, *arguments: str, machine: str = "coordinator") -> str:
        """Runs the command, which must succeed, and returns its output."""
        done = self.run(machine, *arguments)
        assert done.returncode == 0, f"{arguments}: {done.returncode} {done.stderr}"
        return done.stdout

    def json(self, *arguments: str):
        done = self.run("coordinator", *arguments, "-o", "json")
        assert done.returncode in (0, 2), f"{arguments}: {done.returncode} {done.stderr}"  # 2: a finding
        return json.loads(done.stdout)

    def log(self, machine: str) -> str:
        path = self.folder(machine) / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, machine: str, program: str, *settings: str, config: str = ""):
        path = self.folder(machine) / "log"
        arguments = [*self.prefix(machine), BIN / program, "--config", config or self.folder(machine) / "etc" / f"{program[9:]}.toml"]
        for setting in settings:
            arguments += ["--set", setting]
        with open(path, "ab") as log:
            self.processes[machine] = subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True)

    def start_coordinator(self):
        before = self.log("coordinator").count("JoinListening")
        self.start("coordinator", "holdfast-coordinator", f"data_dir={self.folder('coordinator')}/data",
                   f"join.certificate_s={self.certificate_s}", *self.settings)
        self.await_log("coordinator", "JoinListening", before + 1)

    def await_log(self, machine: str, event: str, count: int = 1, seconds: float = 30):
        def seen():
            assert machine not in self.processes or self.processes[machine].poll() is None, self.log(machine)
            return self.log(machine).count(event) >= count
        try:
            wait_for(seen, seconds, f"{machine} logs {event}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log(machine)}") from None

    def stop(self, machine: str, how=signal.SIGKILL):
        process = self.processes.pop(machine)
        process.send_signal(how)
        process.wait(timeout=60)

    def token(self, *arguments: str, role: str = "agent") -> str:
        token = self.hf("token", "create", "--role", role, *arguments).strip()
        self.secrets.append(token.rsplit(".", 1)[1])
        return token

    def join(self, machine: str, token: str, *arguments: str, address: str = "") -> subprocess.CompletedProcess:
        return self.run(machine, "join", address or self.join_address, token, "--name", machine, "--address",
                        self.address(machine), *self.folders(machine), *arguments)

    def add_node(self, node: str, token: str = "", settings: tuple[str, ...] = ()):
        """Lets a node join and starts its agent."""
        done = self.join(node, token or self.token("--node", node))
        assert done.returncode == 0, done.stderr
        self.start_agent(node, *settings)

    def start_agent(self, node: str, *settings: str):
        folder = self.folder(node)
        before = self.log(node).count("AgentReady")
        self.start(node, "holdfast-agent", f"run_dir={folder}/run", f'data_dirs=["{folder}/data"]',
                   "arena.bytes=64MiB", f"data_listen={self.address(node)}:0", f"peers.listen={self.address(node)}:0",
                   "io.io_uring=false", *settings)
        self.await_log(node, "AgentReady", before + 1)

    def start_injector(self, node: str, *settings: str) -> str:
        """Starts a fault injector with the certificate of the node. Returns its address."""
        folder, address = self.folder(node), f"{HOST}:{free_port()}"
        config = folder / "etc" / "fault.toml"
        config.write_text(
            f'cluster = "{self.name}"\nnode = "{node}"\nlisten = "{address}"\nrun_dir = "{folder}/fault"\n'
            f'agent_run_dir = "{folder}/run"\ndata_dirs = ["{folder}/data"]\ncoordinator = "{self.endpoint}"\n\n'
            f'[drills]\nenabled = true\n\n[tls]\nca = "{folder}/tls/ca.crt"\ncert = "{folder}/tls/agent.pem"\n'
            f'key = "{folder}/tls/agent.pem"\n')
        name = f"{node}-fault"
        self.folder(name).mkdir(exist_ok=True)
        self.start(name, "holdfast-fault", *settings, config=config)
        self.await_log(name, "InjectorReady")
        return address

    def nodes_up(self) -> set[str]:
        nodes = self.json("nodes")["nodes"]
        return {one["node"] for one in nodes if one["alive"]}

    def await_up(self, *nodes: str):
        wait_for(lambda: set(nodes) <= self.nodes_up(), 20, f"{nodes} are up")

    def identity(self, node: str) -> pathlib.Path:
        return self.folder(node) / "tls" / "agent.pem"

    def close(self):
        for machine in list(self.processes):
            self.stop(machine)
        # The keepers outlive their agents; each has its run_dir in its command line.
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if b"holdfast-keeper" in command and os.fsencode(f"{self.root}/") in command:
                os.kill(int(process.name), signal.SIGKILL)


class ClusterTest(unittest.TestCase):
    """Makes clusters that end with the test."""

    def make(self, start: bool = True, **options) -> Cluster:
        root = pathlib.Path(tempfile.mkdtemp(prefix="hfsec-"))
        self.addCleanup(shutil.rmtree, root, ignore_errors=True)
        cluster = Cluster(root, **options)
        self.addCleanup(cluster.close)
        if start:
            cluster.start_coordinator()
        return cluster
