"""Tensors in device memory, without torch: on this machine's driver if there is a device, and on the
simulated driver (tests/client/cuda) if it was built."""

import os
import pathlib
import subprocess
import sys

import pytest

from cluster import BINARIES

SIMULATED = BINARIES.resolve().parent / "simulated_driver"


def run(driver, what, job):
    environment = dict(os.environ)
    if driver == "simulated":
        if not (SIMULATED / "libcuda.so.1").exists():
            pytest.skip("the simulated driver was not built: no cuda.h")
        environment["LD_LIBRARY_PATH"] = str(SIMULATED)
    worker = pathlib.Path(__file__).with_name("device_worker.py")
    found = subprocess.run([sys.executable, str(worker), what, job], env=environment, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    if found.returncode == 77:
        pytest.skip("there is no device")
    assert found.returncode == 0, found.stdout
    return found.stdout


@pytest.mark.parametrize("driver", ["real", "simulated"])
def test_the_result_of_the_stream_is_saved(cluster, job, driver):
    run(driver, "the_result_of_the_stream_is_saved", job)


@pytest.mark.parametrize("driver", ["real", "simulated"])
def test_a_missing_device_is_named(cluster, job, driver):
    assert "invalid device ordinal" in run(driver, "a_missing_device_is_named", job)
