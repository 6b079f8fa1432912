"""A headless Chromium, and a server that plays a recorded snapshot to the page."""

import base64
import hashlib
import http.server
import importlib.util
import json
import os
import pathlib
import re
import shutil
import threading
import time

SKIP = 77
SOURCE = pathlib.Path(__file__).resolve().parents[3]
PAGE = SOURCE / "coordinator/ui/page.html"
AXE_FOLDER = pathlib.Path(os.environ.get("HOLDFAST_AXE", "/usr/local/share/holdfast-tests"))


def missing():
    """Returns what this machine lacks for the test, or an empty text."""
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        return "no chromium or chromedriver: deploy/install-deps.sh --ops installs them"
    if importlib.util.find_spec("selenium") is None:
        return "no python3-selenium: deploy/install-deps.sh --ops installs it"
    return ""


def axe_script():
    """Returns the text of axe-core, or None."""
    for path in AXE_FOLDER.glob("**/axe.min.js"):
        return path.read_text()
    return None


def browser(width, height, dark):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--disable-background-networking", "--disable-component-update", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(60)
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                           {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
        {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
    return driver


def wait_until(condition, seconds, what):
    """An update of the page replaces elements: one that is gone when it is read is looked up again."""
    stale = importlib.import_module("selenium.common.exceptions").StaleElementReferenceException
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            value = condition()
        except stale:
            continue
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


def policy(page):
    """The policy that coordinator/ui/page.cc makes. The test of the program compares both."""
    def digest(name):
        text = re.search(f"<{name}>(.*?)</{name}>", page, re.S).group(1)
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return (f"default-src 'none'; script-src 'sha256-{digest('script')}'; style-src 'sha256-{digest('style')}'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")


class Player(http.server.ThreadingHTTPServer):
    """Serves the page and a snapshot. `update` sends another one to the open pages."""

    daemon_threads = True

    def __init__(self, snapshot):
        super().__init__(("127.0.0.1", 0), PlayerHandler)
        self.page = PAGE.read_text()
        self.changed = threading.Condition()
        self.number = 0
        self.text = ""
        self.update(snapshot)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def update(self, snapshot):
        with self.changed:
            self.text = json.dumps(snapshot)
            self.number += 1
            self.changed.notify_all()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/"


class PlayerHandler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, kind, text, **headers):
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/":
            return self.answer("text/html; charset=utf-8", self.server.page,
                               Content_Security_Policy=policy(self.server.page))
        if self.path.startswith("/api/impact"):
            return self.answer("application/json", json.dumps({
                "nodes": ["gpu-0012"], "keeps": True,
                "jobs": [{"job": "pretrain-405b", "newest": "3-18240", "keeps": True, "fallback": "3-18240",
                          "lost_steps": 0, "stops": True, "why_not": ""}]}))
        if self.path != "/api/events":
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        seen = 0
        try:
            while True:
                with self.server.changed:
                    while self.server.number == seen:
                        self.server.changed.wait(1)
                    seen, text = self.server.number, self.server.text
                self.wfile.write(f"id: {seen}\nevent: snapshot\ndata: {text}\n\n".encode())
                self.wfile.flush()
        except OSError:
            return None
