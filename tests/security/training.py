"""A job of two ranks that saves each step in a cluster of two nodes."""

import json
import signal
import subprocess

from cluster import BIN, Cluster

NODES = ("n1", "n2")
JOB = "gpt"


class Training:
    """One rank on each node. The ranks save each step and wait for a free slot, so none skips a step."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.processes = []
        text = cluster.root / "text"
        text.write_text("the quick brown fox jumps over the lazy dog\n" * 100)
        (cluster.root / "rendezvous").mkdir()
        for rank, node in enumerate(NODES):
            with open(cluster.root / f"trainer-{rank}", "wb") as output:
                self.processes.append(subprocess.Popen(
                    [BIN / "holdfast-charlm", "--rank", str(rank), "--world", str(len(NODES)), "--rendezvous",
                     cluster.root / "rendezvous", "--steps", "1000000", "--params", "20000", "--text", text, "--job", JOB,
                     "--run-id", "first", "--socket", cluster.folder(node) / "run" / "agent.sock", "--save-every", "1",
                     "--when-full", "wait", "--events", self.events_file(rank)], stdout=output, stderr=output))

    def events_file(self, rank: int):
        return self.cluster.root / f"events-{rank}"

    def state(self) -> dict:
        jobs = self.cluster.json("status")["jobs"]
        return jobs[0] if jobs else {}

    def peer_step(self) -> int:
        """Returns the newest step that is committed at tier peer; 0: none."""
        return int((self.state().get("peer_committed") or "1-0").split("-")[1])

    def saved_steps(self, rank: int) -> list[int]:
        path = self.events_file(rank)
        lines = path.read_text().splitlines() if path.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return [event["step"] for event in events if event["event"] == "saved"]

    def running(self) -> bool:
        return all(process.poll() is None for process in self.processes)

    def stop(self):
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=30)
