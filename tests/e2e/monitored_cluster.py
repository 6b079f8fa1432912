"""A coordinator and agents on loopback, with TLS, and a real Prometheus that reads their metrics."""

import ctypes
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RULES = ROOT / "deploy/prometheus/holdfast.rules.yml"
TOKEN = "0123456789abcdef0123456789abcdef"
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

    def start(self, name, program, settings, before=(), environment=None):
        """Starts a program of Holdfast. `before` is a command that runs it, `environment` is added to this one's."""
        settings = dict(settings, **{"tls.ca": self.root / "cert.pem", "tls.cert": self.root / "cert.pem",
                                     "tls.key": self.root / "key.pem"})
        command = [*before, self.bins / f"holdfast-{program}"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        self.launch(name, command, environment)

    def launch(self, name, command, environment=None):
        with open(self.root / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=end_with_parent,
                                                    env=dict(os.environ, **(environment or {})))

    def start_coordinator(self, **more):
        settings = {"cluster": "local", "listen": self.endpoint, "data_dir": self.root / "c", "node_lease_ms": 1500,
                    "metrics.listen": "127.0.0.1:0", "access.run_as_users": '["root"]'}
        self.start("coordinator", "coordinator", settings | more)

    def start_agent(self, node, settings=None, name=None, before=(), environment=None):
        """Starts an agent of `node`. `name` is that of the process and of its folder."""
        name = name or node
        at = self.root / name
        at.mkdir(exist_ok=True)
        self.start(name, "agent",
                   {"cluster": "local", "node": node, "coordinator": self.endpoint, "data_listen": "127.0.0.1:0",
                    "insecure_loopback": "true", "peers.listen": "127.0.0.1:0", "run_dir": at / "run",
                    "data_dirs": f'["{at}/data"]', "arena.bytes": "64MiB", "disk.every": 0, "workers.enabled": "true",
                    "workers.log_dir": at / "log", "metrics.listen": "127.0.0.1:0"} | (settings or {}),
                   before, environment)

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

    def stop(self, name):
        """Kills one process."""
        self.processes[name].kill()
        self.processes[name].wait()

    def kill_node(self, node, keeper=False):
        """Kills the agent and its workers, and with `keeper` the memory that the keeper has."""
        self.stop(node)
        for pid in self.ours(f"HOLDFAST_SOCKET={self.root}/{node}/run/agent.sock"):
            self.kill(pid)
        if keeper:
            self.kill_keeper(node)

    def kill_keeper(self, node):
        for pid in self.ours(f"{self.root}/{node}/run", program="holdfast-keeper"):
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

    def ours(self, *texts, program=""):
        """Returns the processes, of this program or of all, with all `texts` in their command or environment."""
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
                words += pathlib.Path(f"/proc/{pid}/environ").read_bytes()
                executable = os.readlink(f"/proc/{pid}/exe")
            except OSError:
                continue
            has_all = all(text.encode() in words for text in texts)
            if pid != os.getpid() and has_all and executable.endswith(program):
                found.append(pid)
        return found

    def show_logs(self):
        for log in sorted(self.root.glob("*.log")):
            print(f"--- {log.name}", "\n".join(log.read_text(errors="replace").splitlines()[-25:]), sep="\n")


class Prometheus:
    """Reads the metrics of the named processes. `with_token` need TLS and the token. The rules
    are the shipped ones with short waits, and with `shorten`, a list of (text, other text), in place of others."""

    def __init__(self, cluster, names, with_token=(), shorten=()):
        self.root = cluster.root
        self.address = f"127.0.0.1:{free_port()}"
        self.begin = time.time()
        rules = re.sub(r"for: \w+", "for: 1s", RULES.read_text())
        for text, other in shorten:
            assert text in rules, text
            rules = rules.replace(text, other)
        (self.root / "rules.yml").write_text(rules)
        (self.root / "prometheus.yml").write_text(f"""
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: [{self.root}/rules.yml]
scrape_configs:
  - job_name: holdfast
    file_sd_configs: [{{ files: ["{self.root}/targets.json"], refresh_interval: 1s }}]
  - job_name: holdfast-tls
    scheme: https
    tls_config: {{ ca_file: {self.root}/cert.pem }}
    authorization: {{ credentials_file: {self.root}/token }}
    static_configs: [{{ targets: {json.dumps([cluster.metrics_address(name) for name in with_token])} }}]
""")
        self.read([cluster.metrics_address(name) for name in names])
        cluster.launch("prometheus",
                       ["prometheus", f"--config.file={self.root}/prometheus.yml",
                        f"--storage.tsdb.path={self.root}/tsdb", f"--web.listen-address={self.address}"])

    def read(self, addresses):
        """Sets the addresses to read; Prometheus follows the file, and sees its replacement only as a rename."""
        (self.root / "targets.new").write_text(json.dumps([{"targets": addresses}]))
        os.rename(self.root / "targets.new", self.root / "targets.json")

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
        alerts = self.get("alerts").get("alerts", [])
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}
