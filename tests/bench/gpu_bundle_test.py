#!/usr/bin/env python3
"""Makes the bundle of bench/gpu-bundle.sh from a build folder, and runs bench/gpu.sh with it where nothing of this
machine is: in a chroot that has only the C library, a shell and a simulated driver.

  gpu_bundle_test.py BUILD

Exit code 77: this is not root, or mounts are refused.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# What gpu.sh uses of a machine.
TOOLS = ("bash", "tar", "gzip", "mkdir", "mktemp", "rm", "mv", "cat", "tail", "head", "tr", "touch", "timeout", "env",
         "dirname", "basename", "grep", "uname", "sleep", "ls")
LIMIT = 60_000_000
BUILD = pathlib.Path()
WORK = pathlib.Path()


def run(*command, expect=0, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != expect:
        raise AssertionError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def copy_with_libraries(program, root):
    """Puts a program and its libraries into the root, at the same paths."""
    text = run("ldd", program).stdout
    for file in {str(program), *re.findall(r"(/\S+) \(0x", text)}:
        target = root / file.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(os.path.realpath(file), target)


def make_root(root):
    for name in ("tmp", "proc", "dev", "bin", "usr/bin"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in TOOLS:
        found = shutil.which(name)
        copy_with_libraries(pathlib.Path(found), root)
        if not found.startswith("/usr/bin/"):
            shutil.copy(os.path.realpath(found), root / "usr/bin" / name)
    if not (root / "bin/bash").exists():
        shutil.copy(root / "usr/bin/bash", root / "bin/bash")
    # Every machine has all of the C library, also the parts that its own tools do not use.
    libraries = pathlib.Path(re.search(r"(/\S+)/libc\.so\.6", run("ldd", shutil.which("bash")).stdout)[1])
    for name in ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6", "libresolv.so.2"):
        shutil.copy(os.path.realpath(libraries / name), root / str(libraries).lstrip("/") / name)
    driver = root / "driver"
    driver.mkdir()
    shutil.copy(BUILD / "simulated_driver/libcuda.so.1", driver)
    # A driver needs the C++ library of its own machine.
    copy_with_libraries(BUILD / "simulated_driver/libcuda.so.1", root)


def in_root(root, *arguments):
    """Runs a command in the root with its own mounts, which end with it. /proc is this machine's."""
    script = ('mount --bind /proc "$1/proc" && mount --bind /dev "$1/dev" && root=$1 && shift && '
              'exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin LD_LIBRARY_PATH=/driver "$@"')
    return subprocess.run(["unshare", "--mount", "bash", "-c", script, "bash", str(root), *map(str, arguments)],
                          capture_output=True, text=True, check=False)


def setUpModule():
    run(ROOT / "bench/gpu-bundle.sh", WORK / "bundle.tar", "--from", BUILD, "--no-wheel")


class GpuBundleTest(unittest.TestCase):
    def test_the_bundle_is_small_and_has_all_libraries_but_the_machines_own(self):
        self.assertLess((WORK / "bundle.tar").stat().st_size, LIMIT)
        with tarfile.open(WORK / "bundle.tar") as bundle:
            names = {pathlib.Path(name).name for name in bundle.getnames()}
        self.assertIn("libholdfast-cuda.so", names)
        self.assertTrue(any(name.startswith("librocksdb.so") for name in names), names)
        for own in ("libc.so.6", "libcuda.so.1", "ld-linux-x86-64.so.2", "libm.so.6"):
            self.assertNotIn(own, names)

    def test_all_that_needs_no_python_runs_in_an_empty_root(self):
        root = WORK / "root"
        make_root(root)
        shutil.copy(WORK / "bundle.tar", root)
        shutil.copy(ROOT / "bench/gpu.sh", root)
        done = in_root(root, "bash", "/gpu.sh", "/bundle.tar", "--out", "/out", "--bytes", "4MiB")
        shown = done.stdout + done.stderr
        logs = "".join(path.read_text() for path in (root / "out").glob("*.log"))
        self.assertEqual(done.returncode, 0, shown + logs[-4000:])
        self.assertFalse((root / "usr/lib/x86_64-linux-gnu/librocksdb.so.7.8").exists())
        results = json.loads((root / "out/results.json").read_text())
        outcomes = {part["part"]: part["outcome"] for part in results["parts"]}
        self.assertEqual(outcomes["copy"], "ok", shown + (root / "out/copy.log").read_text())
        self.assertEqual(outcomes["tests"], "ok", shown)
        self.assertEqual(outcomes["step"], "skipped: there is no python3 with torch")
        self.assertEqual(list(outcomes), ["machine", "copy", "tests", "step", "many", "kill", "modes", "torn", "fault",
                                          "nccl", "nvml"])
        figures = next(part for part in results["parts"] if part["part"] == "copy")["document"]["results"]
        self.assertIn("gpu_seal_10000_tensors", {figure["name"] for figure in figures})
        self.assertTrue(all(figure["ours"] > 0 for figure in figures), figures)
        page = (root / "out/results.md").read_text()
        self.assertIn("| copy | ok |", page)
        self.assertIn("gpu_restore_one_tensor", page)
        # Some tests steer the simulated driver, and none of the others may be skipped.
        passed = re.search(r"\| client_cuda_test \| passed \| (\d+) \|", page)
        self.assertGreater(int(passed[1]), 20, page)

    def test_a_part_that_fails_or_hangs_does_not_affect_the_others(self):
        folder = WORK / "broken"
        with tarfile.open(WORK / "bundle.tar") as bundle:
            bundle.extractall(folder)
        bench = folder / "bundle/bin/holdfast-bench"
        bench.write_text('#!/bin/bash\nprintf \'[{"half": \' >"$rows"\necho to the log >&2\nexit 3\n')
        tests = folder / "bundle/bin/client_cuda_test"
        tests.write_text("#!/bin/bash\nsleep 100\n")
        done = run(ROOT / "bench/gpu.sh", folder / "bundle", "--out", WORK / "out", "--only", "machine,copy,tests",
                   "--seconds", "5", expect=1)
        results = json.loads((WORK / "out/results.json").read_text())
        parts = {part["part"]: part for part in results["parts"]}
        self.assertEqual(parts["machine"]["outcome"], "ok", done.stderr)
        self.assertEqual(parts["copy"]["outcome"], "failed with exit code 3")
        self.assertIn("to the log", parts["copy"]["log"])
        self.assertIsNone(parts["copy"]["document"], "a document that was cut is left out")
        self.assertEqual(parts["tests"]["outcome"], "out of time")
        run(ROOT / "bench/gpu.sh", folder / "bundle", "--out", WORK / "late", "--seconds", "0")
        late = json.loads((WORK / "late/results.json").read_text())
        self.assertEqual({part["outcome"] for part in late["parts"]}, {"not run: no time left"})

    def test_wrong_arguments_are_refused_with_a_reason(self):
        gpu = ROOT / "bench/gpu.sh"
        self.assertIn("does not exist", run(gpu, WORK / "none.tar", expect=64).stderr)
        (WORK / "text.tar").write_text("no archive")
        self.assertIn("is not a bundle", run(gpu, WORK / "text.tar", expect=64).stderr)
        self.assertIn("the parts are: machine copy", run(gpu, WORK / "bundle.tar", "--only", "cpoy", expect=64).stderr)
        self.assertIn("name the file", run(ROOT / "bench/gpu-bundle.sh", expect=64).stderr)
        self.assertIn("build it first", run(ROOT / "bench/gpu-bundle.sh", WORK / "x.tar", "--from", WORK,
                                            expect=1).stderr)
        self.assertFalse((WORK / "x.tar").exists())


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    if os.geteuid() != 0:
        print("SKIPPED: only root can use chroot")
        sys.exit(77)
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
        print("SKIPPED: this machine refuses mounts")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="hf-bundle-") as folder:
        WORK = pathlib.Path(folder)
        sys.exit(not unittest.main(exit=False, verbosity=2).result.wasSuccessful())
