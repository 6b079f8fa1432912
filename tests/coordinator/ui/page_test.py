#!/usr/bin/env python3
"""The page in a headless Chromium, with a recorded job of 10,240 ranks. Exit code 77: something is missing."""

import argparse
import json
import pathlib
import sys
import tempfile
import time
import unittest

import browser
import recording

RANKS = 10_240
RENDER_SECONDS = 2.0
MEMORY_BYTES = 200 << 20
SLOWER = 1.0  # by --slow: on a machine that other programs use
ARTIFACTS = pathlib.Path(tempfile.gettempdir())


def ready(driver, number=1):
    return int(driver.execute_script("return document.body.dataset.ready || 0")) >= number


def private_bytes(pid):
    """Memory of a process that no other process shares."""
    fields = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(fields[name].split()[0]) * 1024 for name in ("Private_Clean", "Private_Dirty"))


def renderer_of(driver):
    """The process that renders the page: the one of chromium's renderers with the most memory."""
    root = driver.service.process.pid
    parents = {}
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            parents[int(fields["Pid"])] = int(fields["PPid"])
        except (OSError, KeyError):
            continue

    def below(pid):
        while pid in parents:
            if pid == root:
                return True
            pid = parents[pid]
        return False

    found = []
    for pid in parents:
        try:
            if below(pid) and b"--type=renderer" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append((private_bytes(pid), pid))
        except OSError:
            continue
    return max(found)


class LargeJob(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.player = browser.Player(recording.snapshot(RANKS))
        cls.driver = browser.browser(1280, 900, dark=False)

    @classmethod
    def tearDownClass(cls):
        cls.driver.quit()
        cls.player.shutdown()

    def load(self):
        self.driver.get(self.player.url)
        browser.wait_until(lambda: ready(self.driver), 60, "the page is rendered")

    def picture(self, name, full=True):
        if full:
            size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
            image = self.driver.execute_cdp_cmd("Page.captureScreenshot", {
                "captureBeyondViewport": True,
                "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}})["data"]
            import base64
            (ARTIFACTS / name).write_bytes(base64.b64decode(image))
        else:
            self.driver.save_screenshot(str(ARTIFACTS / name))

    def test_renders_soon_and_in_little_memory(self):
        self.load()  # warms the browser, not the page
        self.load()
        # From the start of the navigation until the first snapshot is drawn and painted.
        seconds = self.driver.execute_async_script(
            "const done = arguments[0];"
            "requestAnimationFrame(() => setTimeout(() => done(performance.now() / 1000), 0));")
        marks = self.driver.execute_script("return performance.getEntriesByType('paint').map(p => p.startTime)")
        bytes_used, _ = renderer_of(self.driver)
        heap = self.driver.execute_script("return performance.memory.usedJSHeapSize")
        print(f"10,240 ranks: {seconds:.2f} s, renderer {bytes_used / 2**20:.0f} MiB, heap {heap / 2**20:.0f} MiB, "
              f"paints {marks}", flush=True)
        self.assertLessEqual(seconds, RENDER_SECONDS * SLOWER)
        self.assertLessEqual(bytes_used, MEMORY_BYTES)
        count = self.driver.execute_script("return map.rows.length")
        self.assertEqual(count, RANKS)
        self.picture("page-1280-light.png")

    def test_connects_to_no_other_origin(self):
        self.load()
        asked = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                asked.add(message["params"]["request"]["url"])
        others = {url for url in asked if not url.startswith((self.player.url, "data:", "chrome", "about:"))}
        self.assertEqual(others, set())
        errors = [e["message"] for e in self.driver.get_log("browser") if e["level"] == "SEVERE"]
        self.assertEqual(errors, [], "the policy blocks something, or the script fails")

    def test_updates_without_a_reload(self):
        self.load()
        self.driver.execute_script("window.same = 1; document.querySelector('#nodes button').focus()")
        later = recording.snapshot(RANKS, recording.NOW_MS + 4_000)
        later["status"]["jobs"][0]["memory_committed"] = "3-18999"
        self.player.update(later)
        browser.wait_until(lambda: "3-18999" in self.driver.find_element("id", "headline").text, 20, "the new version")
        self.assertEqual(self.driver.execute_script("return window.same"), 1)
        self.assertEqual(self.driver.execute_script("return document.activeElement.textContent"), "all nodes")

    def test_the_panels_have_the_recorded_values(self):
        self.player.update(recording.snapshot(RANKS))
        self.load()
        texts = {s.get_attribute("id"): s.text for s in self.driver.find_elements("css selector", "section")}
        self.assertIn("Needs attention", texts["headline"])
        self.assertIn("any 2 nodes of a group", texts["headline"])
        self.assertIn("holdfast advise --without gpu-0077", texts["headline"])
        self.assertIn("99.0 %", texts["headline"])
        self.assertIn("node lost", texts["incident"])
        self.assertRegex(texts["incident"], r"Place\s+2\.7 s", "7.9 s - 5.2 s")
        self.assertRegex(texts["incident"], r"Restore\s+4\.2 s", "12.1 s - 7.9 s")
        self.assertIn("14 s", texts["incident"], "first step: 26.4 s - 12.1 s")
        self.assertIn("Infrastructure recovery", texts["goodput"])
        self.assertIn("gpu-0588", texts["nodes"], "two incidents on one node")
        self.assertIn("quarantined", texts["nodes"])
        self.assertIn("pinned", texts["versions"])
        self.assertIn("ok 40 s ago, every byte of 20478 replicas", texts["versions"])
        self.assertIn("2 damaged 40 s ago, every byte of 20480 replicas", texts["versions"])
        self.assertIn("ok 40 s ago, every byte of 20478 of 40478 replicas", texts["versions"])
        self.assertIn("not recorded", texts["versions"])
        self.assertIn("15.0 TiB of 20.0 TiB reserved, fullest node 21 % free, full in about 5 h 15 min",
                      texts["capacity"])
        self.assertIn("623", texts["ranks"], "a rank of the silent node")
        self.driver.find_element("xpath", "//button[text()='Lateness']").click()
        browser.wait_until(lambda: "4711" in self.driver.find_element("id", "ranks").text, 5, "the straggler is first")
        self.driver.find_element("xpath", "//button[text()='Parity lag']").click()
        browser.wait_until(lambda: "1 min 1 s, 3 versions" in self.driver.find_element("id", "ranks").text, 5,
                           "the group whose parity is behind is first")
        rows = self.driver.find_elements("css selector", "#ranks tbody tr")
        self.assertEqual([row.find_element("tag name", "td").text for row in rows], [str(576 + i) for i in range(5)])

    def test_the_drain_question_is_answered(self):
        self.load()
        self.driver.find_element("id", "node").send_keys("gpu-0012\n")
        browser.wait_until(lambda: "Safe" in self.driver.find_element("id", "safe").text, 5, "an answer")

    def test_the_keyboard_is_enough(self):
        from selenium.webdriver.common.keys import Keys
        self.load()
        self.driver.find_element("tag name", "body").send_keys(Keys.TAB)
        self.assertEqual(self.driver.switch_to.active_element.text, "Skip to the content")
        reached = set()
        for _ in range(60):
            element = self.driver.switch_to.active_element
            reached.add(element.get_attribute("id") or element.text)
            element.send_keys(Keys.TAB)
        self.assertLessEqual({"map", "node", "1 h", "Stall", "all nodes", "What would be lost?"}, reached)
        canvas = self.driver.find_element("id", "map")
        canvas.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
        self.assertRegex(self.driver.find_element("id", "rank").text, r"^Rank \d+ on gpu-\d+ \(pipeline")

    def test_axe_finds_nothing_serious(self):
        axe = browser.axe_script()
        if axe is None:
            self.skipTest(f"no axe.min.js below {browser.AXE_FOLDER}: deploy/install-deps.sh --ops installs it")
        for width, dark in ((1280, False), (1280, True), (360, False)):
            driver = browser.browser(width, 800, dark)
            try:
                driver.set_script_timeout(120)
                # A small job: axe measures every element, and the map is one.
                small = browser.Player(recording.snapshot(64))
                driver.get(small.url)
                browser.wait_until(lambda d=driver: ready(d), 30, "the page is rendered")
                driver.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
                result = driver.execute_async_script("axe.run().then(arguments[0])")
                self.assertGreater(len(result["passes"]), 20, "axe has run")
                found = [(v["id"], v["impact"], [n["html"][:120] for n in v["nodes"]][:3])
                         for v in result["violations"]]
                print(f"axe at {width} px, {'dark' if dark else 'light'}: {len(result['passes'])} rules pass, "
                      f"{found}", flush=True)
                self.assertEqual([v for v in found if v[1] in ("serious", "critical")], [])
            finally:
                driver.quit()
                small.shutdown()

    def test_a_narrow_and_a_dark_screen(self):
        for name, width, dark in (("page-360-light.png", 360, False), ("page-1280-dark.png", 1280, True)):
            driver = browser.browser(width, 800, dark)
            try:
                driver.get(self.player.url)
                browser.wait_until(lambda d=driver: ready(d), 60, "the page is rendered")
                self.driver, wide = driver, self.driver
                self.picture(name)
                self.driver = wide
                self.assertLessEqual(driver.execute_script("return document.documentElement.scrollWidth"), width,
                                     "nothing scrolls sideways but tables")
                ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
                self.assertEqual(ground == "rgb(17, 22, 28)", dark, ground)
            finally:
                driver.quit()


class OddJobs(unittest.TestCase):
    def page_of(self, snapshot):
        player = browser.Player(snapshot)
        self.addCleanup(player.shutdown)
        driver = browser.browser(1280, 800, False)
        self.addCleanup(driver.quit)
        driver.get(player.url)
        browser.wait_until(lambda: ready(driver), 60, "the page is rendered")
        errors = [e["message"] for e in driver.get_log("browser") if e["level"] == "SEVERE"]
        self.assertEqual(errors, [])
        return driver

    def test_names_with_markup_stay_text(self):
        driver = self.page_of(recording.snapshot(64, markup=True))
        self.assertIsNone(driver.execute_script("return window.broken || null"))
        self.assertEqual(driver.execute_script("return document.querySelectorAll('main img, main script').length"), 0)
        self.assertIn("<script>window.broken=1</script>", driver.find_element("id", "incident").text)
        driver.execute_script("const s = document.getElementById('job'); s.selectedIndex = 1;"
                              "s.dispatchEvent(new Event('change'))")
        self.assertIn("<script>", driver.find_element("id", "headline").text)
        self.assertIsNone(driver.execute_script("return window.broken || null"))

    def test_one_rank_and_no_telemetry(self):
        one = recording.snapshot(1)
        one["ranks"] = []
        driver = self.page_of(one)
        self.assertIn("No rank reports telemetry", driver.find_element("id", "ranks").text)

    def test_arenas_that_are_not_reported(self):
        some = recording.snapshot(64)
        for sample in some["history"]["capacity"][:100]:
            sample[5:] = [0, 0, None]
        some["status"]["nodes"][0].update(arena_bytes=None, arena_reserved_bytes=None)
        text = self.page_of(some).find_element("id", "capacity").text
        self.assertIn("only 7 of 8 nodes report it", text)
        self.assertRegex(text, r"fullest node 21 % free, full in about \d+ h", "the trend begins with the reports")
        for node in some["status"]["nodes"]:
            node.update(arena_bytes=None, arena_reserved_bytes=None)
        for sample in some["history"]["capacity"]:
            sample[4:] = [None, 0, 0, None]
        text = self.page_of(some).find_element("id", "capacity").text
        self.assertIn("no node reports the size of its arena", text)
        self.assertIn("no node reports its free space", text)

    def test_a_job_without_parity_groups(self):
        plain = recording.snapshot(8)
        for row in plain["ranks"][0]["rows"]:
            row[-2:] = [-1, -1]
        driver = self.page_of(plain)
        driver.find_element("xpath", "//button[text()='Parity lag']").click()
        browser.wait_until(lambda: "no parity groups" in driver.find_element("id", "ranks").text, 5, "why it is empty")

    def test_a_cluster_without_jobs(self):
        empty = recording.snapshot(8)
        empty["status"]["jobs"] = []
        empty["history"]["jobs"] = []
        empty["versions"]["versions"] = []
        driver = self.page_of(empty)
        self.assertIn("no job has connected yet", driver.find_element("id", "headline").text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifacts", type=pathlib.Path, default=ARTIFACTS)
    parser.add_argument("--slow", type=float, default=1.0, help="factor of the time limit on a loaded machine")
    known, rest = parser.parse_known_args()
    ARTIFACTS, SLOWER = known.artifacts, known.slow
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    if browser.missing():
        print("skipped:", browser.missing())
        sys.exit(browser.SKIP)
    sys.argv[1:] = rest
    unittest.main(verbosity=2)
