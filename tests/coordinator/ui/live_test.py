#!/usr/bin/env python3
"""The page of a running coordinator, over HTTP and in a headless Chromium where that is installed.

  live_test.py BIN_DIR [--artifacts DIR]
"""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse

import browser

BINS = ARTIFACTS = None
TOKEN = "0123456789abcdef0123456789abcdef"
JOB = "page-job"
# The machine may be loaded.
PATIENCE_SECONDS = 60


class Coordinator:
    def __init__(self, root, **settings):
        self.root, self.log = pathlib.Path(root), pathlib.Path(root) / "coordinator.log"
        self.endpoint = f"unix:{root}/c.sock"
        self.children = []
        self.start("coordinator", {"cluster": "local", "listen": self.endpoint, "data_dir": f"{root}/c",
                                   "ui.listen": "127.0.0.1:0", **settings})

    def start(self, program, settings):
        command = [BINS / f"holdfast-{program}"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        with open(self.root / f"{program}.log", "ab") as log:
            self.children.append(subprocess.Popen(command, stdout=log, stderr=log))

    def start_agent(self, node="n0"):
        at = self.root / node
        at.mkdir()
        self.start("agent", {"cluster": "local", "node": node, "coordinator": self.endpoint,
                             "run_dir": at / "run", "data_dirs": f'["{at}/data"]',
                             "arena.bytes": "64MiB", "workers.enabled": "true", "workers.log_dir": at / "log"})

    def url(self):
        found = browser.wait_until(lambda: re.search(r"PageListening url=(\S+)", self.log.read_text()),
                                   PATIENCE_SECONDS, "the page listens: " + self.log.read_text())
        return found[1]

    def cli(self, *arguments):
        return subprocess.run([BINS / "holdfast", "--endpoint", self.endpoint, *arguments], capture_output=True,
                              text=True, timeout=PATIENCE_SECONDS)

    def get(self, path, method="GET", host=None, headers=None):
        """Returns the status, the headers and the text."""
        parts = urllib.parse.urlsplit(self.url())
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or parts.netloc)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read().decode()

    def snapshot(self):
        return json.loads(self.get("/api/snapshot")[2])

    def wait_loaded(self, condition=lambda s: True):
        def loaded():
            snapshot = self.snapshot()
            return snapshot if snapshot["loaded"] and condition(snapshot) else None
        return browser.wait_until(loaded, PATIENCE_SECONDS, "the snapshot has the state")

    def end(self):
        for child in reversed(self.children):
            child.send_signal(signal.SIGTERM)
        for child in self.children:
            try:
                child.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        # The keeper and workers are no children of this process: the folder in their arguments names them.
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if f"{self.root}/".encode() in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
            except (OSError, ProcessLookupError):
                continue


class Live(unittest.TestCase):
    def coordinator(self, **settings):
        folder = tempfile.TemporaryDirectory(prefix="page-")
        self.addCleanup(folder.cleanup)
        coordinator = Coordinator(folder.name, **settings)
        self.addCleanup(coordinator.end)
        return coordinator

    def test_the_page_and_its_headers(self):
        coordinator = self.coordinator()
        status, headers, text = coordinator.get("/")
        self.assertEqual(status, 200)
        self.assertEqual(text, browser.PAGE.read_text(), "the file is a part of the program")
        self.assertEqual(headers["Content-Security-Policy"], browser.policy(text))
        self.assertEqual(headers["X-Frame-Options"], "DENY")
        self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
        self.assertIsNone(headers["Access-Control-Allow-Origin"])
        self.assertNotIn("http://", re.sub(r"http://www.w3.org/2000/svg", "", text), "no other origin")
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            self.assertEqual(coordinator.get("/api/snapshot", method)[0], 405, method)
        self.assertEqual(coordinator.get("/etc/passwd")[0], 404)
        self.assertEqual(coordinator.get("/api/snapshot", host="attacker.example")[0], 421)
        self.assertEqual(coordinator.get("/", host="127.0.0.1.attacker.example")[0], 421)
        self.assertEqual(coordinator.get("/", host="localhost:1")[0], 200)

    def test_the_snapshot_has_the_documents_of_the_commands(self):
        coordinator = self.coordinator()
        snapshot = coordinator.wait_loaded()
        for name, command in (("status", "status"), ("versions", "versions"), ("incidents", "incidents")):
            printed = json.loads(coordinator.cli(command, "-o", "json").stdout)
            for key in ("schema", "kind"):
                printed.pop(key)
            self.assertEqual({**printed, "time": 0}, {**snapshot[name], "time": 0}, command)
        self.assertEqual([f["code"] for f in snapshot["status"]["findings"]], ["NO_NODES"])
        self.assertEqual(snapshot["status"]["findings"][0]["next"], "holdfast doctor")
        status, _, text = coordinator.get("/api/impact?node=n9")
        self.assertEqual(status, 404, text)
        self.assertEqual(coordinator.get("/api/impact?node=a%20b")[0], 400)
        self.assertEqual(coordinator.get("/api/impact")[0], 400)

    def test_the_commands(self):
        coordinator = self.coordinator()
        coordinator.wait_loaded()
        url = coordinator.url()
        shown = coordinator.cli("ui")
        self.assertEqual(shown.stdout, url + "\n", shown.stderr)
        top = coordinator.cli("top", "--count", "1")
        self.assertEqual(top.returncode, 2, top.stderr)
        self.assertIn("NO_NODES", top.stdout)
        self.assertIn("> holdfast doctor", top.stdout)
        without = self.coordinator(**{"ui.listen": ""})
        browser.wait_until(lambda: "CoordinatorListening" in without.log.read_text(), PATIENCE_SECONDS, "it listens")
        self.assertIn("set ui.listen", without.cli("ui").stderr)
        self.assertNotIn("PageListening", without.log.read_text())

    def test_updates_are_bounded(self):
        coordinator = self.coordinator()
        coordinator.wait_loaded()
        parts = urllib.parse.urlsplit(coordinator.url())
        streams = []
        for _ in range(8):
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
            connection.request("GET", "/api/events")
            reply = connection.getresponse()
            self.assertEqual(reply.status, 200)
            streams.append((connection, reply))
        numbers = set()
        while len(numbers) < 3:
            line = streams[0][1].readline().decode()
            self.assertTrue(line, "the stream has ended")
            if line.startswith("id: "):
                numbers.add(line)
            if line.startswith("data: "):
                self.assertEqual(json.loads(line[6:])["kind"], "ui")
        self.assertEqual(coordinator.get("/api/events")[0], 503, "the ninth")
        self.assertEqual(coordinator.get("/api/snapshot")[0], 200, "others are answered")
        for connection, reply in streams:
            reply.close()
            connection.close()
        browser.wait_until(lambda: self.opens(parts), 20, "places of clients that left are free")
        began = time.monotonic()
        open_one = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
        open_one.request("GET", "/api/events")
        open_one.getresponse().readline()
        coordinator.children[0].send_signal(signal.SIGTERM)
        coordinator.children[0].wait(20)
        self.assertLess(time.monotonic() - began, 15, "an open stream does not delay the end")

    @staticmethod
    def opens(parts):
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
        connection.request("GET", "/api/events")
        return connection.getresponse().status == 200

    def test_a_token_and_a_socket(self):
        folder = tempfile.TemporaryDirectory(prefix="token-")
        self.addCleanup(folder.cleanup)
        token = pathlib.Path(folder.name) / "token"
        token.write_text(TOKEN + "\n")
        token.chmod(0o600)
        coordinator = self.coordinator(**{"ui.token_file": token})
        self.assertEqual(coordinator.get("/")[0], 200, "the page asks for the token")
        for path in ("/api/snapshot", "/api/events", "/api/impact?node=n0"):
            self.assertEqual(coordinator.get(path)[0], 401, path)
            self.assertEqual(coordinator.get(path, headers={"Authorization": "Bearer " + TOKEN[:-1]})[0], 401, path)
        self.assertEqual(coordinator.get("/api/snapshot", headers={"Authorization": "Bearer " + TOKEN})[0], 200)
        path = f"{folder.name}/ui.sock"
        local = self.coordinator(**{"ui.listen": "unix:" + path})
        self.assertEqual(local.url(), "unix:" + path)
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o660)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            self.assertTrue(client.recv(100).startswith(b"HTTP/1.1 200"))
        refused = subprocess.run([BINS / "holdfast-coordinator", "--set", f"data_dir={folder.name}/d", "--set",
                                  f"listen=unix:{folder.name}/c.sock", "--set", "ui.listen=0.0.0.0:0"], capture_output=True, text=True,
                                 timeout=PATIENCE_SECONDS)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("ui.token_file", refused.stderr)

    def test_a_job_that_saves(self):
        coordinator = self.coordinator()
        coordinator.start_agent()
        coordinator.wait_loaded(lambda s: any(n["alive"] for n in s["status"]["nodes"]))
        secret = "SECRET_VALUE_OF_THE_ENVIRONMENT"
        ran = coordinator.cli("run", "--job", JOB, "--nnodes", "1", "--nproc-per-node", "1", "--detach",
                              "--env", f"KEY={secret}", "--", str(BINS / "holdfast-charlm"),
                              "--rendezvous", f"{coordinator.root}/meet", "--steps", "1000000",
                              "--step-sleep-ms", "200", "--params", "20000")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        snapshot = coordinator.wait_loaded(
            lambda s: any(v["tiers"] for v in s["versions"]["versions"]) and s["history"]["jobs"] and
            len(s["history"]["jobs"][0]["marks"]["memory"]) > 1)
        self.assertNotIn(secret, json.dumps(snapshot))
        self.assertEqual(snapshot["history"]["jobs"][0]["job"], JOB)
        self.assertGreater(snapshot["history"]["jobs"][0]["hour"]["ettr"], 0.9)
        node = coordinator.wait_loaded(lambda s: s["status"]["nodes"][0]["arena_reserved_bytes"])["status"]["nodes"][0]
        self.assertEqual(node["arena_bytes"], 64 << 20, "arena.bytes of the agent")
        self.assertGreater(node["arena_reserved_bytes"], 0)
        self.assertLessEqual(node["arena_reserved_bytes"], node["arena_bytes"])
        status, _, text = coordinator.get("/api/impact?node=n0")
        printed = json.loads(coordinator.cli("advise", "--without", "n0", "-o", "json").stdout)
        self.assertEqual((status, json.loads(text)["keeps"]), (200, printed["keeps"]), text)
        # A version in memory lives for two steps: the newest on disk is the one to verify.
        browser.wait_until(lambda: coordinator.cli("pin", JOB, "newest").returncode == 0, PATIENCE_SECONDS, "a version on disk")
        pinned = coordinator.wait_loaded(lambda s: any(v["pinned"] for v in s["versions"]["versions"]))
        version = next(v["version"] for v in pinned["versions"]["versions"] if v["pinned"])
        checked = coordinator.cli("verify", JOB, "--version", version, "--deep")
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        snapshot = coordinator.wait_loaded(lambda s: any(v["verification"] for v in s["versions"]["versions"]))
        found = {v["version"]: v["verification"] for v in snapshot["versions"]["versions"] if v["verification"]}
        self.assertEqual(list(found), [version])
        self.assertEqual((found[version]["result"], found[version]["deep"]), ("ok", True))
        self.check_shape(snapshot)
        if browser.missing():
            print("without a browser:", browser.missing(), flush=True)
            return
        driver = browser.browser(1280, 900, False)
        self.addCleanup(driver.quit)
        driver.get(coordinator.url())
        browser.wait_until(lambda: JOB in driver.find_element("id", "headline").text, PATIENCE_SECONDS, "the headline")
        first = driver.find_element("css selector", "#versions tbody td").text
        browser.wait_until(lambda: driver.find_element("css selector", "#versions tbody td").text != first,
                           PATIENCE_SECONDS, "a newer version appears without a reload")
        if ARTIFACTS:
            driver.save_screenshot(str(ARTIFACTS / "live.png"))
        errors = [e["message"] for e in driver.get_log("browser") if e["level"] == "SEVERE"]
        self.assertEqual(errors, [])

    def test_parity_lag_and_the_times_of_a_restart(self):
        coordinator = self.coordinator(**{"node_lease_ms": 3000})
        for node in ("n0", "n1"):
            coordinator.start_agent(node)
        (coordinator.root / "meet").mkdir()
        coordinator.wait_loaded(lambda s: sum(n["alive"] for n in s["status"]["nodes"]) == 2)
        ran = coordinator.cli("run", "--job", JOB, "--nnodes", "2", "--nproc-per-node", "1", "--detach", "--",
                              str(BINS / "holdfast-charlm"), "--rendezvous", f"{coordinator.root}/meet",
                              "--steps", "1000000", "--step-sleep-ms", "200", "--params", "20000")
        self.assertEqual(ran.returncode, 0, ran.stderr)

        def lags(snapshot):
            """By rank: versions and milliseconds."""
            for job in snapshot["ranks"]:
                at = [job["columns"].index(c) for c in ("rank", "parity_lag_versions", "parity_lag_ms")]
                return {row[at[0]]: (row[at[1]], row[at[2]]) for row in job["rows"]}
            return {}

        snapshot = coordinator.wait_loaded(lambda s: any("peer" in v["tiers"] for v in s["versions"]["versions"]) and
                                           len(lags(s)) == 2 and lags(s)[0][0] >= 0)
        self.assertLess(max(ms for _, ms in lags(snapshot).values()), 1000 * PATIENCE_SECONDS)
        os.kill(self.worker_of(coordinator), signal.SIGKILL)
        snapshot = coordinator.wait_loaded(lambda s: any(i["state"] == "recovered" for i in s["incidents"]["incidents"]))
        incident = next(i for i in snapshot["incidents"]["incidents"] if i["state"] == "recovered")
        times = [incident[f"{phase}_ms"] for phase in ("detect", "decide", "place", "restore", "first_step")]
        self.assertEqual(times, sorted(times), incident)
        shown = coordinator.cli("incidents", "show", str(incident["id"])).stdout
        self.assertRegex(shown, r"placed +\d")
        # Without n1 the group lacks the parity of one member, and the lag of the rank on n0 grows.
        agent = coordinator.children[2]
        agent.send_signal(signal.SIGSTOP)
        try:
            coordinator.wait_loaded(lambda s: any(v >= 1 and ms > 5000 for v, ms in lags(s).values()))
        finally:
            agent.send_signal(signal.SIGCONT)

    @staticmethod
    def worker_of(coordinator):
        """The process of one trainer of the coordinator's run."""
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                text = path.read_bytes().decode()
            except OSError:
                continue
            if text.startswith(str(BINS / "holdfast-charlm")) and f"{coordinator.root}/meet" in text:
                return int(path.parent.name)
        raise AssertionError("no trainer runs")

    def check_shape(self, snapshot):
        """The recording of the other test has no field that a coordinator lacks."""
        import recording
        recorded = recording.snapshot(8)

        def compare(recorded, real, path):
            if isinstance(recorded, dict) and isinstance(real, dict) and not path.endswith(("labels", "marks")):
                self.assertEqual(set(recorded) - set(real), set(), path)
                for key in recorded:
                    compare(recorded[key], real[key], f"{path}.{key}")
            if isinstance(recorded, list) and isinstance(real, list) and recorded and real:
                compare(recorded[0], real[0], path + "[0]")

        compare(recorded, snapshot, "snapshot")


if __name__ == "__main__":
    BINS = pathlib.Path(sys.argv[1]).resolve()
    rest = sys.argv[2:]
    if rest[:1] == ["--artifacts"]:
        ARTIFACTS = pathlib.Path(rest[1])
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        rest = rest[2:]
    sys.argv[1:] = rest
    unittest.main(verbosity=2)
