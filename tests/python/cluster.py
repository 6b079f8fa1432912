"""A Holdfast cluster in a folder: real processes over Unix sockets, ended by their process IDs."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

BINARIES = pathlib.Path(os.environ["HOLDFAST_BIN_DIR"])


def wait_until(condition, seconds=20.0, what="condition"):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.05)
    raise TimeoutError(f"{what}: not within {seconds} s")


def _peer_pid(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return None
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return struct.unpack("3i", data)[0]


class Cluster:
    """One coordinator and `nodes` agents with their keepers, of the folder `programs`."""

    def __init__(self, nodes=1, arena_bytes=512 << 20, agent_settings=(), data=None, programs=BINARIES):
        self.programs = programs
        # A short path, since the length of socket paths is limited.
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="hf-py"))
        self.data = pathlib.Path(data or self.root).resolve()  # where versions are written
        self.nodes = nodes
        self.agent_settings = [f"arena.bytes={arena_bytes}", *agent_settings]
        self.coordinator_settings = []
        self.settings_of_node = {}  # of single agents
        self.command_of_node = {}   # a command that runs the agent's, for example in a network namespace
        self.coordinator = None
        self.agents = {}

    def _start(self, log, program, settings, prefix=()):
        arguments = [*prefix, str(self.programs / program)]
        for setting in settings:
            arguments += ["--set", setting]
        with open(self.root / log, "ab") as out:
            return subprocess.Popen(arguments, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    @property
    def endpoint(self):
        return f"unix:{self.root}/c.sock"

    def socket(self, node=0):
        return str(self.root / f"n{node}/run/agent.sock")

    def start(self):
        self.start_coordinator()
        for node in range(self.nodes):
            self.start_agent(node)
        wait_until(lambda: all(f"n{node}" in self.cli("nodes").stdout
                               for node in range(self.nodes)), what="attaching the agents")
        return self

    def start_coordinator(self):
        self.coordinator = self._start("coordinator.log", "holdfast-coordinator", [
            "cluster=local", f"listen={self.endpoint}", f"data_dir={self.root}/coordinator",
            *self.coordinator_settings])

    def start_agent(self, node=0):
        home = self.root / f"n{node}"
        home.mkdir(exist_ok=True)
        self.agents[node] = self._start(f"n{node}/agent.log", "holdfast-agent", [
            "cluster=local", f"node=n{node}", f"coordinator={self.endpoint}",
            f"data_listen=unix:{home}/d.sock", f"peers.listen=unix:{home}/p.sock",
            f"run_dir={home}/run", f'data_dirs=["{self.data}/n{node}/data"]', "disk.every=1",
            "workers.enabled=true", f"workers.log_dir={home}/log", *self.agent_settings,
            *self.settings_of_node.get(node, [])], self.command_of_node.get(node, []))
        wait_until(lambda: self.agents[node].poll() is not None or _peer_pid(self.socket(node)),
                   what=f"agent n{node}")
        if self.agents[node].poll() is not None:
            raise RuntimeError((home / "agent.log").read_text()[-4000:])

    def stop_agent(self, node=0):
        """Stops the agent with SIGSTOP. When this returns, none of its threads runs."""
        pid = self.agents[node].pid
        os.kill(pid, signal.SIGSTOP)
        states = pathlib.Path(f"/proc/{pid}/task").glob
        wait_until(lambda: all(path.read_text().rpartition(")")[2].split()[0] == "T"
                               for path in states("*/stat")), what="stopping the agent")

    def kill_agent(self, node=0):
        self.agents[node].kill()
        self.agents[node].wait()

    def _kill_keeper(self, node):
        path = self.root / f"n{node}/run/keeper.sock"
        pid = _peer_pid(path)
        if pid:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: _peer_pid(path) != pid, what="the end of the keeper")

    def kill_everything(self):
        """Simulates a power loss: the memory is lost, the disks remain."""
        processes = [self.coordinator, *self.agents.values()]
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        for node in self.agents:
            self._kill_keeper(node)

    def cli(self, *arguments, timeout=60):
        return subprocess.run([str(self.programs / "holdfast"), "--endpoint", self.endpoint, *arguments],
                              capture_output=True, text=True, timeout=timeout)

    def stop(self):
        self.kill_everything()
        shutil.rmtree(self.root, ignore_errors=True)
