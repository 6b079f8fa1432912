#!/usr/bin/env python3
"""A drilled job under a real Prometheus: every query of the shipped rules and of the Grafana board returns data, and
alerts fire and resolve. One agent serves its metrics by TLS and token, one on a unix socket and as a text file.

  monitoring_test.py BIN_DIR

Exit code 77: prometheus is not installed."""

import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from monitored_cluster import ROOT, TOKEN, Cluster, Prometheus, free_port, wait

NODES = ["n0", "n1", "n2"]
# Alerts that the drill causes; alerts_test.py causes the others.
EXPECTED = ["HoldfastNodeDown", "HoldfastNotDurable", "HoldfastRunWaiting", "HoldfastNodeQuarantined"]


def settings_of(cluster, node):
    at = cluster.root / node
    metrics = {
        "n0": {},
        "n1": {"metrics.token_file": cluster.root / "token"},
        "n2": {"metrics.listen": f"unix:{at}/m.sock", "metrics.textfile": at / "holdfast.prom",
               "metrics.textfile_period_s": 1},
    }[node]
    # Only every 200th step gets parity, so the newest version has none when a node fails.
    return {"peers.every": 200} | metrics


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
    cluster.start_agent("n2", settings_of(cluster, "n2"))
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
        cluster.start("relay", "coordinator",
                      {"cluster": "local", "role": "relay", "listen": f"127.0.0.1:{free_port()}",
                       "upstream": f'["{cluster.endpoint}"]', "metrics.listen": "127.0.0.1:0"})
        for node in NODES:
            cluster.start_agent(node, settings_of(cluster, node))
            cluster.start_injector(node)
        prometheus = Prometheus(cluster, ["coordinator", "relay", "n0"], with_token=["n1"])
        wait("all nodes are up", lambda: prometheus.query("sum(holdfast_node_up) == 3"))
        wait("all targets are up", lambda: prometheus.query("sum(up) == 4"))
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
        cluster.show_logs()
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
