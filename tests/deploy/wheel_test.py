#!/usr/bin/env python3
"""Makes the wheel from a build folder, installs it in a bare environment, and saves and restores with it.

  wheel_test.py BUILD

Exit code 77: pip cannot install the tools that make wheels, so nothing was checked.
"""

import glob
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BYTES_MAX = 6 << 20
IMPORT_SECONDS_MAX = 0.05
GLIBC_MAX = (2, 36)
UNAVAILABLE = 69
BUILD = pathlib.Path()
WORK = pathlib.Path()

# Saves three steps of random bytes, or restores them. Uses nothing but Python and the package.
PROGRAM = """
import ctypes, hashlib, os, sys
import holdfast
command, socket = sys.argv[1], sys.argv[2]
assert "torch" not in sys.modules and "numpy" not in sys.modules
memory = (ctypes.c_char * 3_000_017)()
tensor = holdfast.Tensor("weights", ctypes.addressof(memory), holdfast.DType.U8, (len(memory),), owner=memory)
with holdfast.Client("wheel", [tensor], socket_path=socket) as client:
    restored = client.restore()
    if command == "save":
        assert restored is None
        for step in range(1, 4):
            client.guard()
            memory.raw = os.urandom(len(memory))
            client.save(step)
            client.wait(step, holdfast.Tier.DISK)
    else:
        assert restored.version.step == 3, restored
    print(hashlib.sha256(memory.raw).hexdigest())
"""

IMPORT_TIME = """
import time
begin = time.process_time()  # other processes of the machine do not count
import holdfast
print(time.process_time() - begin)
"""


def run(*command, **options):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: exit {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def make_wheel(python, out):
    """Returns the wheel, or exits with 77 if pip cannot install what makes one."""
    result = subprocess.run([str(ROOT / "deploy" / "package.sh"), "--wheel", "--from", str(BUILD), "--out", str(out),
                             "--python", str(python)], capture_output=True, text=True, check=False)
    if result.returncode == UNAVAILABLE:
        print(f"SKIPPED: {result.stderr}")
        sys.exit(77)
    if result.returncode != 0:
        raise AssertionError(result.stdout + result.stderr)
    made = list(out.glob("*.whl"))
    assert len(made) == 1, made
    assert result.stdout.split() == [str(made[0])], result.stdout
    return made[0]


def environment(python, wheel, folder):
    """Installs the wheel in a new environment without any other package, and returns its Python."""
    run(python, "-m", "venv", folder)
    run(folder / "bin" / "pip", "install", "--quiet", "--no-index", "--find-links", wheel.parent, "holdfast")
    return folder / "bin" / "python"


def newer_pythons():
    """Returns a Python of 3.12 and of each later version that is here with its headers."""
    names = [*(f"python3.{minor}" for minor in range(12, 20)),
             *sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.[1-9][2-9]*/bin/python3")))]
    found = {}
    for name in names:
        path = shutil.which(name)
        if path is None:
            continue
        answer = subprocess.run([path, "-c", "import sys, sysconfig, os, venv; print(sys.version_info[1], os.path.exists("
                                 "os.path.join(sysconfig.get_path('include'), 'Python.h')))"],
                                capture_output=True, text=True, check=False).stdout.split()
        if len(answer) == 2 and answer[1] == "True":
            found.setdefault(int(answer[0]), path)
    return [found[minor] for minor in sorted(found)]


def setUpModule():
    global WHEEL, PYTHON, UNPACKED
    WHEEL = make_wheel("/usr/bin/python3", WORK / "wheel")
    PYTHON = environment("/usr/bin/python3", WHEEL, WORK / "bare")
    UNPACKED = WORK / "unpacked"
    with zipfile.ZipFile(WHEEL) as archive:
        archive.extractall(UNPACKED)


class ContentsTest(unittest.TestCase):
    def libraries(self):
        found = [path for path in UNPACKED.rglob("*") if ".so" in path.name]
        self.assertTrue(found)
        return found

    def test_it_is_small(self):
        print(f"{WHEEL.name}: {WHEEL.stat().st_size} bytes", flush=True)
        self.assertLessEqual(WHEEL.stat().st_size, BYTES_MAX)

    def test_auditwheel_agrees_with_the_name(self):
        run(sys.executable, "-m", "venv", WORK / "audit")
        run(WORK / "audit/bin/pip", "install", "--quiet", "auditwheel")
        shown = run(WORK / "audit/bin/auditwheel", "show", WHEEL)
        tag = re.search(r'platform tag:\s+"(manylinux_(\d+)_(\d+)_\w+)"', shown)
        self.assertIsNotNone(tag, shown)
        print(tag[1], flush=True)
        self.assertIn(tag[1], WHEEL.name)
        self.assertLessEqual((int(tag[2]), int(tag[3])), GLIBC_MAX)

    def test_it_has_the_libraries(self):
        files = {path.name for path in (UNPACKED / "holdfast").iterdir()}
        self.assertLessEqual({"libholdfast.so.1", "libnccl-profiler-holdfast.so", "py.typed", "torch"}, files)
        self.assertEqual("libholdfast-cuda.so" in files, (BUILD / "lib" / "libholdfast-cuda.so").exists())

    def test_no_library_needs_or_has_grpc(self):
        for path in self.libraries():
            symbols = run("nm", "-D", path) + run("readelf", "-d", path)
            self.assertIn("NEEDED", symbols)
            self.assertNotRegex(symbols, r"grpc|absl|protobuf|rocksdb", path)

    def test_no_library_has_a_path_of_the_machine_that_built_it(self):
        for path in self.libraries():
            for entry in re.findall(r"R(?:UN)?PATH.*\[(.*)\]", run("readelf", "-d", path)):
                for folder in filter(None, entry.split(":")):
                    self.assertTrue(folder.startswith("$ORIGIN"), f"{path.name}: {entry}")

    def test_only_the_interface_is_exported(self):
        for name in ("libholdfast.so.1", "libnccl-profiler-holdfast.so"):
            symbols = [line.split()[-1] for line in run("nm", "-D", "--defined-only", UNPACKED / "holdfast" / name)
                       .splitlines()]
            self.assertTrue(symbols)
            for symbol in symbols:
                self.assertRegex(symbol, r"^(holdfast_|ncclProfiler|HOLDFAST_)", name)


class UseTest(unittest.TestCase):
    def test_import(self):
        seconds = min(float(run(PYTHON, "-c", IMPORT_TIME)) for _ in range(5))
        print(f"import holdfast: {seconds * 1000:.1f} ms", flush=True)
        self.assertLessEqual(seconds, IMPORT_SECONDS_MAX)
        loaded = run(PYTHON, "-c", "import sys, holdfast; print(holdfast.__version__, 'torch' in sys.modules)")
        self.assertEqual(loaded.split(), [WHEEL.name.split("-")[1], "False"])

    def test_torch_is_named_where_it_is_missing(self):
        result = subprocess.run([PYTHON, "-c", "import holdfast.torch"], capture_output=True, text=True, check=False)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("No module named 'torch'", result.stderr)

    def test_nccl_finds_the_profiler(self):
        loaded = run(PYTHON, "-c", "import ctypes, holdfast; path = holdfast.plugins.nccl_profiler(); "
                     "library = ctypes.CDLL(path); print(path, bool(library.ncclProfiler_v4), library._handle != 0)")
        self.assertEqual(loaded.split(), [str(next(WORK.glob("bare/lib/python3*/site-packages")) / "holdfast" /
                                              "libnccl-profiler-holdfast.so"), "True", "True"])

    def save_and_restore(self, python):
        os.environ["HOLDFAST_BIN_DIR"] = str(BUILD / "bin")
        sys.path.insert(0, str(ROOT / "tests" / "python"))
        from cluster import Cluster
        program = WORK / "program.py"
        program.write_text(PROGRAM)
        cluster = Cluster(arena_bytes=64 << 20)
        self.addCleanup(cluster.stop)
        cluster.start()
        saved = run(python, program, "save", cluster.socket())
        self.assertEqual(run(python, program, "restore", cluster.socket()), saved)
        # And once more from the disk, as a file that needs no package.
        cluster.kill_everything()
        cluster.start()
        self.assertEqual(run(python, program, "restore", cluster.socket()), saved)
        done = cluster.cli("restore", "wheel", "--to", str(WORK / "restored"))
        self.assertEqual(done.returncode, 0, done.stderr)
        image = next((WORK / "restored").rglob("*.safetensors")).read_bytes()
        header = int.from_bytes(image[:8], "little")
        begin, end = json.loads(image[8:8 + header])["weights"]["data_offsets"]
        tensor = image[8 + header + begin:8 + header + end]
        self.assertEqual(hashlib.sha256(tensor).hexdigest(), saved.strip())
        shutil.rmtree(WORK / "restored")

    def test_what_is_saved_is_restored(self):
        self.save_and_restore(PYTHON)

    def test_one_wheel_serves_all_newer_pythons(self):
        pythons = newer_pythons()
        if not pythons:
            self.skipTest("there is no Python of 3.12 or newer with its headers")
        wheel = make_wheel(pythons[0], WORK / "stable")
        self.assertIn("-cp312-abi3-", wheel.name)
        for number, python in enumerate(pythons):
            installed = environment(python, wheel, WORK / f"stable-{number}")
            print(run(installed, "-c", "import sys, holdfast; print('abi3 in', sys.version)").strip(), flush=True)
        self.save_and_restore(installed)


def main():
    global BUILD, WORK
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 64
    BUILD = pathlib.Path(sys.argv.pop()).resolve()
    with tempfile.TemporaryDirectory(prefix="holdfast-wheel-") as folder:
        WORK = pathlib.Path(folder)
        return 0 if unittest.main(exit=False, verbosity=2).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
