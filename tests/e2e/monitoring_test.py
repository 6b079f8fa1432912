#!/usr/bin/env python3
"""A drilled job under a real Prometheus: every query of the shipped rules and of the Grafana board returns data, and
alerts fire and resolve. One agent serves its metrics by TLS and token, one on a unix socket and as a text file.

  monitoring_test.py BIN_DIR

Exit code 77: prometheus is not installed."""

import ctypes
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOKEN = "0123456789abcdef0123456789abcdef"
NODES = ["n0", "n1", "n2"]
# Alerts that the drill causes.
EXPECTED = ["HoldfastNodeDown", "HoldfastNotDurable", "HoldfastRunWaiting", "HoldfastNodeQuarantined"]
LIBC = ctypes.CDLL(None)


def end_with_parent():
    pr_set_pdeathsig = 1
    LIBC.prctl(pr_set_pdeathsig, signal.SIGKILL)


def wait(what, condition, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s: {what}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Cluster:
    """Coordinator and agents with TLS everywhere, on loopback."""

    def __init__(self, bins, root):
        self.bins, self.root, self.processes = bins, root, {}
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.make_certificate()
        (root / "token").write_text(TOKEN + "\n")
        (root / "token").chmod(0o600)

    def make_certificate(self):
        """One self-signed certificate serves as authority, server and client."""
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-keyout", self.root / "key.pem", "-out", self.root / "cert.pem", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
        (self.root / "key.pem").chmod(0o600)

    def start(self, name, program, settings):
        settings = dict(settings, **{"tls.ca": self.root / "cert.pem", "tls.cert": self.root / "cert.pem",
                                     "tls.key": self.root / "key.pem"})
        command = [self.bins / f"holdfast-{program}"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        log = open(self.root / f"{name}.log", "ab")
        self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=end_with_parent)

    def start_coordinator(self):
        self.start("coordinator", "coordinator",
                   {"cluster": "local", "listen": self.endpoint, "data_dir": self.root / "c", "node_lease_ms": 1500,
                    "metrics.listen": "127.0.0.1:0", "access.run_as_users": '["root"]'})

    def start_agent(self, node):
        at = self.root / node
        metrics = {
            "n0": {"metrics.listen": "127.0.0.1:0"},
            "n1": {"metrics.listen": "127.0.0.1:0", "metrics.token_file": self.root / "token"},
            "n2": {"metrics.listen": f"unix:{at}/m.sock", "metrics.textfile": at / "holdfast.prom",
                   "metrics.textfile_period_s": 1},
        }[node]
        at.mkdir(exist_ok=True)
        # Only every 200th step gets parity, so the newest version has none when a node fails.
        self.start(node, "agent",
                   {"cluster": "local", "node": node, "coordinator": self.endpoint, "data_listen": "127.0.0.1:0",
                    "insecure_loopback": "true",
                    "peers.listen": "127.0.0.1:0", "run_dir": at / "run", "data_dirs": f'["{at}/data"]',
                    "arena.bytes": "64MiB", "disk.every": 0, "peers.every": 200, "workers.enabled": "true",
                    "workers.log_dir": at / "log", **metrics})

    def start_injector(self, node):
        at = self.root / node
        self.start(f"fault-{node}", "fault",
                   {"cluster": "local", "node": node, "coordinator": self.endpoint,
                    "listen": f"unix:{at}/fault.sock", "run_dir": at / "fault", "agent_run_dir": at / "run",
                    "data_dirs": f'["{at}/data"]', "drills.enabled": "true"})

    def metrics_address(self, name):
        log = self.root / f"{name}.log"
        found = wait(f"metrics of {name}", lambda: re.search(r"MetricsListening address=(\S+)", log.read_text()))
        return found[1]

    def cli(self, *arguments, code=0):
        command = [self.bins / "holdfast", "--endpoint", self.endpoint]
        for key, name in (("ca", "cert"), ("cert", "cert"), ("key", "key")):
            command += [f"--tls-{key}", self.root / f"{name}.pem"]
        ran = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
        assert code is None or ran.returncode == code, f"{arguments}: {ran.returncode} {ran.stdout} {ran.stderr}"
        return ran.stdout

    def kill_node(self, node):
        """Kills the agent and its workers. The keeper stays, with the newest version in its memory."""
        self.processes[node].kill()
        self.processes[node].wait()
        for pid in self.ours(f"HOLDFAST_SOCKET={self.root}/{node}/run/agent.sock"):
            self.kill(pid)

    def end(self):
        for process in self.processes.values():
            process.kill()
            process.wait()
        # Keepers and workers are not children of this process: this folder in their arguments identifies them.
        wait("all processes have ended", lambda: not [self.kill(pid) for pid in self.ours(f"{self.root}/")])

    def kill(self, pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def ours(self, text):
        """Returns the processes that have `text` in their command or environment."""
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
                words += pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            if pid != os.getpid() and text.encode() in words:
                found.append(pid)
        return found


class Prometheus:
    def __init__(self, cluster):
        self.root = cluster.root
        self.address = f"127.0.0.1:{free_port()}"
        self.begin = time.time()
        (self.root / "rules.yml").write_text(
            # The same rules with short waits.
            re.sub(r"for: \w+", "for: 1s", (ROOT / "deploy/prometheus/holdfast.rules.yml").read_text()))
        (self.root / "prometheus.yml").write_text(f"""
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: [{self.root}/rules.yml]
scrape_configs:
  - job_name: holdfast
    static_configs: [{{ targets: ["{cluster.metrics_address('coordinator')}", "{cluster.metrics_address('n0')}"] }}]
  - job_name: holdfast-tls
    scheme: https
    tls_config: {{ ca_file: {self.root}/cert.pem }}
    authorization: {{ credentials_file: {self.root}/token }}
    static_configs: [{{ targets: ["{cluster.metrics_address('n1')}"] }}]
""")
        log = open(self.root / "prometheus.log", "wb")
        cluster.processes["prometheus"] = subprocess.Popen(
            ["prometheus", f"--config.file={self.root}/prometheus.yml", f"--storage.tsdb.path={self.root}/tsdb",
             f"--web.listen-address={self.address}"], stdout=log, stderr=log, preexec_fn=end_with_parent)

    def get(self, path, **parameters):
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # Prometheus starts
                return {}
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        except (urllib.error.URLError, ConnectionError):
            return {}

    def query(self, expression):
        return self.get("query", query=expression).get("result", [])

    def had_data(self, expression):
        """Whether the query returned anything at any time of the test."""
        now = time.time()
        return bool(self.get("query_range", query=expression, start=self.begin, end=now, step=1).get("result"))

    def firing(self):
        return {alert["labels"]["alertname"] for alert in self.get("alerts")["alerts"] if alert["state"] == "firing"}


def check_protected_pages(cluster):
    """TLS with a token on n1; a unix socket and a text file on n2."""
    address = cluster.metrics_address("n1")
    trust = ssl.create_default_context(cafile=cluster.root / "cert.pem")

    def scrape(headers):
        request = urllib.request.Request(f"https://{address}/metrics", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    status, page = scrape({"Authorization": f"Bearer {TOKEN}"})
    assert status == 200 and "\nholdfast_agent_trainers " in page, page
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        status, page = scrape(headers)
        assert status == 401 and "holdfast_agent_trainers" not in page, page
    try:
        urllib.request.urlopen(f"http://{address}/metrics", timeout=10)
        raise AssertionError("metrics are served without TLS")
    except (urllib.error.URLError, http.client.HTTPException, OSError):
        pass

    with socket.socket(socket.AF_UNIX) as plain:
        plain.settimeout(10)
        plain.connect(str(cluster.root / "n2/m.sock"))
        plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: n2\r\n\r\n")
        page = b"".join(iter(lambda: plain.recv(65536), b"")).decode()
    assert page.startswith("HTTP/1.1 200 OK") and "\nholdfast_agent_trainers " in page, page
    text = wait("a text file", lambda: (cluster.root / "n2/holdfast.prom").exists())
    assert text
    subprocess.run(["promtool", "check", "metrics"], check=True, stdin=open(cluster.root / "n2/holdfast.prom"))


def committed_step(prometheus):
    found = prometheus.query('max(holdfast_job_committed_step{tier="memory"})')
    return float(found[0]["value"][1]) if found else 0


def drill(cluster, prometheus):
    """Kills a rank, puts a node in quarantine, and takes an agent away until the alerts fire."""
    injectors = [word for node in NODES for word in ("--injector", f"{node}=unix:{cluster.root}/{node}/fault.sock")]
    cluster.cli("drill", "kill-rank", "--job", "lm", "--target", "rank", "1", "--yes", *injectors)
    cluster.cli("quarantine", "n0", "--why", "a test")
    wait("HoldfastNodeQuarantined fires", lambda: "HoldfastNodeQuarantined" in prometheus.firing())
    cluster.cli("quarantine", "n0", "--release")
    before = committed_step(prometheus)
    wait("the job goes on", lambda: committed_step(prometheus) > before)

    cluster.kill_node("n2")
    for name in ("HoldfastNodeDown", "HoldfastRunWaiting", "HoldfastNotDurable"):
        wait(f"{name} fires", lambda name=name: name in prometheus.firing())
        print(f"{name} fires {time.time() - prometheus.begin:.1f} s after the start", flush=True)
    cluster.start_agent("n2")
    wait("the alerts resolve", lambda: not set(EXPECTED) & prometheus.firing())
    print(f"all are resolved {time.time() - prometheus.begin:.1f} s after the start", flush=True)
    for name in EXPECTED:
        assert prometheus.had_data(f'ALERTS{{alertname="{name}",alertstate="firing"}}'), name


def selectors_in(expression):
    """The series that an alert reads. Incidents exist only for the kinds that happened."""
    found = re.findall(r"\bholdfast[a-z_0-9]*(?::[a-z_0-9]+)*(?:\{[^}]*\})?", expression)
    return {re.sub(r"^(holdfast_incidents)\{.*", r"\1", one) for one in found if one != "holdfast_job"}


def check_queries(prometheus):
    board = json.loads((ROOT / "deploy/grafana/holdfast.json").read_text())
    queries = {target["expr"] for panel in board["panels"] for target in panel.get("targets", [])}
    queries |= {annotation["expr"] for annotation in board["annotations"]["list"]}
    queries = {query.replace("$holdfast_job", ".*").replace("$__rate_interval", "5s") for query in queries}
    panels = len(queries)
    alerts = 0
    for group in prometheus.get("rules")["groups"]:
        for rule in group["rules"]:
            assert rule["health"] == "ok", rule
            if rule["type"] == "recording":
                queries.add(rule["name"])
                continue
            alerts += 1
            queries |= selectors_in(rule["query"])
    empty = sorted(query for query in queries if not prometheus.had_data(query))
    assert not prometheus.had_data("holdfast_no_such_metric")
    assert panels > 30 and alerts > 25
    assert not empty, "no data: " + "\n".join(empty)
    print(f"{len(queries)} queries return data, {panels} of them of the board; {alerts} alerts", flush=True)


def run(bins, root):
    cluster = Cluster(bins, root)
    try:
        cluster.start_coordinator()
        for node in NODES:
            cluster.start_agent(node)
            cluster.start_injector(node)
        prometheus = Prometheus(cluster)
        wait("all nodes are up", lambda: prometheus.query("sum(holdfast_node_up) == 3"))
        wait("all targets are up", lambda: prometheus.query("sum(up) == 3"))
        (root / "meet").mkdir()
        cluster.cli("run", "--user", "root", "--job", "lm", "--detach", "--grace", "2s", "--nnodes", "3",
                    "--nproc-per-node", "1", "--max-restarts", "20", "--", str(bins / "holdfast-charlm"), "--rendezvous", str(root / "meet"),
                    "--steps", "1000000", "--step-sleep-ms", "20", "--params", "20000")
        wait("a version in memory", lambda: committed_step(prometheus) > 10)
        check_protected_pages(cluster)
        for tier in ("disk", "peer"):
            wait(f"a version at {tier}", lambda tier=tier: prometheus.query(
                f'holdfast_job_committed_step{{tier="{tier}"}} > 0'))
        drill(cluster, prometheus)
        check_queries(prometheus)
        cluster.cli("stop", "lm", "--now", code=None)
    except BaseException:
        for log in sorted(root.glob("*.log")):
            print(f"--- {log.name}", "\n".join(log.read_text(errors="replace").splitlines()[-25:]), sep="\n")
        raise
    finally:
        cluster.end()


def main():
    for program in ("prometheus", "openssl"):
        if shutil.which(program) is None:
            print(f"SKIPPED: {program} is not installed (deploy/install-deps.sh --ops)")
            return 77
    root = pathlib.Path(tempfile.mkdtemp(prefix="hfm-"))
    try:
        run(pathlib.Path(sys.argv[1]).resolve(), root)
    finally:
        if "HOLDFAST_KEEP" not in os.environ:
            shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
