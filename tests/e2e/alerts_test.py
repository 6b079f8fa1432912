#!/usr/bin/env python3
"""Real faults under a real Prometheus: each shipped alert fires because of its fault, and resolves after its remedy.

  alerts_test.py SCENE BIN_DIR TESTS_DIR     SCENE: nodes, disks or jobs

Exit code 77: prometheus is not installed, or this user is not root, who alone can mount disks and confine agents."""

import errno
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from monitored_cluster import LIBC, Cluster, Prometheus, free_port, wait

PROFILES = pathlib.Path(__file__).resolve().parent / "profiles"
# Shorter ages and windows, for a short test.
SHORTEN = [("> 600", "> 6"), ("[5m]", "[5s]"), ("[1h]", "[30s]"), ("[1d]", "[10s]")]
LEAST_STEP_MS = 50


class Scene(Cluster):
    """A cluster whose processes keep their metrics addresses, so that Prometheus finds them after a restart."""

    def __init__(self, bins, tests, root, names):
        super().__init__(bins, root)
        self.tests = tests
        self.metrics = {name: f"127.0.0.1:{free_port()}" for name in names}
        self.prometheus = None
        self.fired = set()
        self.disks = []
        (root / "meet").mkdir()

    def end(self):
        super().end()
        for disk in self.disks:
            subprocess.run(["umount", disk], check=True)

    def mount_disk(self, at, megabytes):
        """Mounts a small disk, which no other process of the machine sees."""
        clone_newns = 0x20000
        assert LIBC.unshare(clone_newns) == 0
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        at.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "disk", at], check=True)
        self.disks.append(at)

    def coordinator(self, **more):
        self.start_coordinator(**({"metrics.listen": self.metrics["coordinator"]} | more))
        if self.prometheus is None:
            self.prometheus = Prometheus(self, [], shorten=SHORTEN)
            self.prometheus.read(list(self.metrics.values()))
        wait("the coordinator answers", lambda: "HOLDFAST" in self.cli("status", code=None))

    def restart_coordinator(self, **more):
        self.stop("coordinator")
        self.coordinator(**more)

    def agent(self, node, name=None, before=(), environment=None, **more):
        listen = {"metrics.listen": self.metrics[name or node]} if (name or node) in self.metrics else {}
        self.start_agent(node, listen | more, name, before, environment)

    def await_nodes(self, count):
        wait(f"{count} nodes are up", lambda: self.prometheus.query(f"sum(holdfast_node_up) == {count}"))

    def await_alerts(self, *names, meanwhile=lambda: None):
        for name in names:
            try:
                wait(f"{name} fires", lambda name=name: meanwhile() or name in self.prometheus.firing(), 40)
            except AssertionError as error:
                raise AssertionError(f"{error}; firing: {sorted(self.prometheus.firing())}\n"
                                     + self.cli("status", code=None)) from error
            print(f"{time.time() - self.prometheus.begin:5.1f} s  {name} fires", flush=True)
            self.fired.add(name)

    def await_resolved(self, *names):
        quiet = 0  # seconds without these alerts: series are absent for a moment after a restart

        def resolved():
            nonlocal quiet
            quiet = 0 if set(names) & self.prometheus.firing() else quiet + 1
            time.sleep(0.8)
            return quiet > 3

        wait(f"{names} resolve", resolved, 90)
        print(f"{time.time() - self.prometheus.begin:5.1f} s  {', '.join(names)}: resolved", flush=True)

    def run(self, job, nodes, *program, restarts=20):
        self.cli("run", "--user", "root", "--job", job, "--detach", "--grace", "2s", "--nnodes", str(nodes),
                 "--nproc-per-node", "1", "--max-restarts", str(restarts), "--", *map(str, program))

    def train(self, job, nodes, *more):
        """Starts a run of the example that trains until it is stopped."""
        meet = self.root / "meet" / job
        meet.mkdir(exist_ok=True)
        self.run(job, nodes, self.bins / "holdfast-charlm", "--rendezvous", meet, "--steps", "1000000", "--params",
                 "20000", "--step-sleep-ms", LEAST_STEP_MS, *more)

    def await_version(self, job, tier):
        wait(f"a version of {job} at {tier}",
             lambda: self.prometheus.query(f'holdfast_job_committed_step{{holdfast_job="{job}",tier="{tier}"}} > 0'))

    def committed_step(self, job):
        found = self.prometheus.query(f'max(holdfast_job_committed_step{{holdfast_job="{job}",tier="memory"}})')
        return float(found[0]["value"][1]) if found else 0

    def workers(self, job):
        return self.ours(f"HOLDFAST_SOCKET={self.root}/", f"HOLDFAST_JOB={job}", program="holdfast-charlm")

    def succeeds(self, *arguments):
        try:
            self.cli(*arguments)
        except AssertionError:
            return False
        return True


def nodes(scene):
    """Faults of servers and machines."""
    scene.coordinator()
    scene.await_alerts("HoldfastNoNodes")
    nvml = scene.root / "libnvml.so"
    shutil.copy(scene.tests / "libholdfast_fake_nvml.so", nvml)
    script = pathlib.Path(f"{nvml}.script")
    script.write_text("devices 8\n")

    confine = [scene.tests / "holdfast_confine"]
    (scene.root / "n0/run").mkdir(parents=True)
    scene.launch("keeper", [scene.bins / "holdfast-keeper", "--run-dir", scene.root / "n0/run"])
    own_keeper = {"arena.start_keeper": "false", "gpus.nvml_library": nvml}
    scene.agent("n0", environment={"LD_PRELOAD": str(scene.tests / "libholdfast_skewed_clock.so"), "SKEW_S": "-5"},
                **own_keeper)
    scene.agent("n1", before=[*confine, "--profile", PROFILES / "no-io-uring-eperm.json", "--"])
    scene.agent("n2", before=[*confine, "--pids", "--"])
    scene.await_nodes(3)
    scene.await_resolved("HoldfastNoNodes")
    scene.await_alerts("HoldfastClockSkewed", "HoldfastIoUringRefused", "HoldfastKeeperShared")
    with script.open("a") as file:
        file.write("event 3 79\n")
    scene.cli("drain", "n0", code=None)
    scene.cli("quarantine", "n2", "--why", "a test")
    scene.await_alerts("HoldfastNodeDrained", "HoldfastNodeQuarantined")
    scene.stop("keeper")
    scene.await_alerts("HoldfastKeeperLost", "HoldfastGpuSuspect")
    scene.agent("n0", name="second-n0")
    scene.await_alerts("HoldfastNodeWarning")

    for name in ("second-n0", "n0", "n1", "n2"):
        scene.stop(name)
    scene.await_alerts("HoldfastNodeDown", "HoldfastAllNodesDown")
    scene.stop("coordinator")
    scene.await_alerts("HoldfastCoordinatorDown")
    shutil.copytree(scene.root / "c", scene.root / "old")
    contradict = [scene.tests / "contradicting_store", scene.root / "c/metadata", "local", "gpt"]
    subprocess.run(contradict, check=True)
    scene.coordinator()
    for name in ("n0", "n1", "n2"):
        scene.agent(name)
    scene.await_nodes(3)
    scene.restart_coordinator()
    scene.await_nodes(3)
    scene.cli("pin", "gpt", "1-5", code=None)
    scene.await_alerts("HoldfastInvariantViolated", "HoldfastCoordinatorDown")

    # An older copy of the store, whose epoch is lower than the one that the agents have seen.
    scene.stop("coordinator")
    scene.coordinator(data_dir=scene.root / "old")
    scene.await_alerts("HoldfastNodeRefused")
    scene.stop("coordinator")
    backup = [scene.bins / "holdfast-coordinator", "--set", f"data_dir={scene.root}/old", "--backup-to"]
    subprocess.run([*backup, scene.root / "backup"], check=True, capture_output=True)
    scene.coordinator(data_dir=scene.root / "backup")
    scene.await_nodes(3)
    scene.cli("drain", "n0", "--undo")
    for node in ("n0", "n2"):
        scene.cli("quarantine", node, "--release", "--untested")
    scene.await_resolved(*scene.fired)


def fill(folder, share):
    """Makes a file that takes this share of the file system's free bytes, if there are any."""
    disk = os.statvfs(folder)
    size = int(disk.f_bavail * disk.f_frsize * share)
    if size > 0:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="filler", delete=False) as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                # The agent has taken some of the space meanwhile.
                if error.errno != errno.ENOSPC:
                    raise


def empty(folder):
    for filler in folder.glob("filler*"):
        filler.unlink()


def disks(scene):
    """Faults of disks, of nodes with a trained job."""
    disk = scene.root / "n0/data"
    scene.mount_disk(disk, 64)
    scene.coordinator()
    for node in ("n0", "n1", "n2"):
        scene.agent(node, **{"scrub.pause_ms": 1000})
    scene.await_nodes(3)
    scene.train("lm", 3)
    scene.await_version("lm", "disk")

    fill(disk, 0.95)
    scene.await_alerts("HoldfastDiskLow")
    # Removed versions free some space again.
    scene.await_alerts("HoldfastDiskFull", "HoldfastDiskStale", meanwhile=lambda: fill(disk, 1))
    empty(disk)
    scene.await_resolved("HoldfastDiskLow", "HoldfastDiskFull", "HoldfastDiskStale")

    # The disk is busy while a file is open for writing.
    wait("the disk is read-only", lambda: subprocess.run(
        ["mount", "-o", "remount,ro", disk], capture_output=True).returncode == 0)
    scene.await_alerts("HoldfastDiskFailed")
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    scene.await_resolved("HoldfastDiskFailed")

    version = re.search(r"1-[0-9]+", scene.cli("pin", "lm", "newest"))[0]
    with (scene.root / f"n1/data/lm/v{version}/rank-1.safetensors").open("r+b") as file:
        file.seek(4096)
        byte = file.read(1)[0]
        file.seek(4096)
        file.write(bytes([byte ^ 1]))
    scene.await_alerts("HoldfastReplicasDamaged")

    scene.stop("n2")
    (scene.root / "n2/data/unknown").write_text("not a shard")
    scene.agent("n2")
    scene.await_alerts("HoldfastQuarantinedFiles")
    shutil.rmtree(scene.root / "n2/data/quarantine")
    scene.kill_node("n2")
    scene.await_alerts("HoldfastUnderProtected")
    scene.agent("n2")
    scene.await_resolved(*scene.fired)


def rank(scene, job, number, world, node, byte=1, first=1, stride=1):
    """Starts one rank of a job of another launcher."""
    scene.launch(f"{job}-{number}", [scene.tests / "saving_rank", scene.root / node / "run/agent.sock", job,
                                     *map(str, (number, world, byte, first, stride))])


def lose_newest(scene, job, alerts, settings):
    """A job's newest version is only in memory, and a node loses its memory."""
    before = scene.committed_step(job)
    scene.train(job, 3)
    wait("a new version in memory", lambda: scene.committed_step(job) > before)
    scene.kill_node("n1", keeper=True)
    scene.await_alerts(*alerts)
    scene.agent("n1", **settings)
    scene.await_nodes(3)


def jobs(scene):
    """Faults of jobs, and of the store that knows them."""
    alert = {"detect.action": "alert"}
    scene.coordinator(**alert)
    scene.start("relay", "coordinator",
                {"cluster": "local", "role": "relay", "listen": f"127.0.0.1:{free_port()}",
                 "upstream": f'["{scene.endpoint}"]', "metrics.listen": scene.metrics["relay"]})
    for node in ("n0", "n1", "n2"):
        scene.agent(node)
    scene.await_nodes(3)
    wait("the relay has the coordinator", lambda: scene.prometheus.query("holdfast_relay_connected == 1"))

    rank(scene, "alone", 0, 2, "n0")
    scene.await_alerts("HoldfastRanksMissing")
    rank(scene, "twins", 0, 2, "n0", byte=1)
    rank(scene, "twins", 1, 2, "n1", byte=2)
    rank(scene, "apart", 0, 2, "n0", first=1, stride=2)
    rank(scene, "apart", 1, 2, "n1", first=2, stride=2)
    scene.run("broken", 1, "/bin/false", restarts=0)
    scene.train("unsaved", 1, "--save-every", "0")
    scene.await_alerts("HoldfastDisputed", "HoldfastNothingCommits", "HoldfastRunFailed", "HoldfastNoCheckpoint",
                       "HoldfastNotProtected")
    for name in ("alone-0", "twins-0", "twins-1", "apart-0", "apart-1"):
        scene.stop(name)
    for job in ("unsaved", "broken"):
        scene.cli("stop", job, "--now", code=None)

    scene.train("lm", 3)
    scene.await_version("lm", "peer")
    scene.stop("coordinator")
    scene.await_alerts("HoldfastTelemetryUnsent", "HoldfastRelayUnconnected")
    scene.coordinator(**alert)
    for pid in scene.workers("lm"):
        os.kill(pid, signal.SIGSTOP)
    scene.await_alerts("HoldfastCheckpointStale", "HoldfastPeerStale")
    for pid in scene.workers("lm"):
        os.kill(pid, signal.SIGCONT)
    scene.await_resolved("HoldfastCheckpointStale", "HoldfastPeerStale", "HoldfastTelemetryUnsent",
                         "HoldfastRelayUnconnected")
    for restart in range(6):
        before = scene.workers("lm")
        scene.kill(before[0])

        def restarted(before=before):
            now = scene.workers("lm")
            return len(now) == 3 and not set(before) & set(now)
        wait("the job is restarted", restarted)
    scene.await_alerts("HoldfastRestartsOften")

    # The newest version is only in the memory of nodes, and one of them loses its memory.
    scene.cli("stop", "lm", "--now", code=None)
    in_memory = {"disk.every": 1000000, "peers.every": 1000000}
    for node in ("n0", "n1", "n2"):
        scene.stop(node)
        scene.agent(node, **in_memory)
    scene.await_nodes(3)
    names = ["HoldfastNotRestorable", "HoldfastRunWaiting", "HoldfastNodeDown"]
    lose_newest(scene, "new", names, in_memory)
    scene.cli("stop", "new", "--now", code=None)
    wait("the job is forgotten", lambda: scene.succeeds("forget", "new", "--yes"))
    scene.await_resolved(*names)
    # This job has an older version on disk.
    lose_newest(scene, "lm", ["HoldfastRestoreBehind"], in_memory)
    scene.await_resolved("HoldfastRestoreBehind")
    scene.cli("stop", "lm", "--now", code=None)

    for incident in json.loads(scene.cli("incidents", "--job", "twins", "-o", "json"))["incidents"]:
        scene.cli("incidents", "--ack", str(incident["id"]))
    for job in ("alone", "apart", "broken", "unsaved"):
        wait(f"{job} is forgotten", lambda job=job: scene.succeeds("forget", job, "--yes"))
    scene.await_resolved(*scene.fired - {"HoldfastRestartsOften"})

    scene.stop("coordinator")
    (scene.root / "c").rename(scene.root / "lost")
    scene.coordinator(**alert)
    scene.await_alerts("HoldfastOtherLife")
    scene.await_nodes(3)
    scene.cli("adopt")
    scene.await_resolved(*scene.fired)


SCENES = {
    "nodes": (nodes, ["coordinator", "n0", "n1", "n2"],
              ["HoldfastNoNodes", "HoldfastClockSkewed", "HoldfastIoUringRefused", "HoldfastKeeperShared",
               "HoldfastNodeDrained", "HoldfastNodeQuarantined", "HoldfastKeeperLost", "HoldfastGpuSuspect",
               "HoldfastNodeWarning", "HoldfastNodeDown", "HoldfastAllNodesDown", "HoldfastCoordinatorDown",
               "HoldfastInvariantViolated", "HoldfastNodeRefused"]),
    "disks": (disks, ["coordinator", "n0", "n1", "n2"],
              ["HoldfastDiskLow", "HoldfastDiskFull", "HoldfastDiskStale", "HoldfastDiskFailed",
               "HoldfastReplicasDamaged", "HoldfastQuarantinedFiles", "HoldfastUnderProtected"]),
    "jobs": (jobs, ["coordinator", "relay", "n0", "n1", "n2"],
             ["HoldfastRanksMissing", "HoldfastDisputed", "HoldfastNothingCommits", "HoldfastRunFailed",
              "HoldfastNoCheckpoint", "HoldfastNotProtected", "HoldfastTelemetryUnsent", "HoldfastRelayUnconnected",
              "HoldfastCheckpointStale", "HoldfastPeerStale", "HoldfastRestartsOften", "HoldfastNotRestorable", "HoldfastRunWaiting",
              "HoldfastNodeDown", "HoldfastRestoreBehind", "HoldfastOtherLife"]),
}


def main():
    for program in ("prometheus", "openssl"):
        if shutil.which(program) is None:
            print(f"SKIPPED: {program} is not installed (deploy/install-deps.sh --ops)")
            return 77
    if os.geteuid() != 0:
        print("SKIPPED: only root can mount disks and confine agents")
        return 77
    play, names, alerts = SCENES[sys.argv[1]]
    root = pathlib.Path(tempfile.mkdtemp(prefix="hfal"))
    try:
        scene = Scene(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), root, names)
        try:
            play(scene)
            assert scene.fired == set(alerts), scene.fired ^ set(alerts)
        except BaseException:
            scene.show_logs()
            raise
        finally:
            scene.end()
    finally:
        if "HOLDFAST_KEEP" not in os.environ:
            shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
