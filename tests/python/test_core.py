"""Tests of the binding of holdfast.h, without torch."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import holdfast
import numpy
import pytest
from holdfast import records


def state(*names, size=1000):
    arrays = {name: numpy.zeros(size, numpy.float32) for name in names}
    return arrays, [holdfast.Tensor.of(name, array) for name, array in arrays.items()]


def test_a_saved_state_is_restored(cluster, job):
    arrays, tensors = state("a", "b")
    with holdfast.Client(job, tensors) as client:
        assert client.restore() is None
        arrays["a"][:] = 1.5
        client.save(3, {"note": b"x\0y"})
        client.guard()
        arrays["a"][:] = 2.5
        client.wait(3, holdfast.Tier.MEMORY)
        assert client.latest() == (1, 3)
        assert client.latest(holdfast.Tier.PEER) in (None, (1, 3))
        assert client.stats()["copied"] == 1
    assert client.closed
    arrays, tensors = state("a", "b")
    with holdfast.Client(job, tensors) as client:
        restored = client.restore()
        assert restored.version == holdfast.Version(1, 3) and str(restored.version) == "1-3"
        assert restored.extras == {"note": b"x\0y"}
        assert (arrays["a"] == 1.5).all() and (arrays["b"] == 0).all()


def test_a_missing_version_is_not_a_fresh_start(cluster, job):
    _, tensors = state("a")
    with holdfast.Client(job, tensors) as client:
        client.save(1)
        client.wait(1)
    with holdfast.Client(job, tensors) as client:
        with pytest.raises(holdfast.NotFoundError, match="1-99"):
            client.restore(holdfast.Version(1, 99))


def test_differences_are_named(cluster, job):
    _, tensors = state("a", "b")
    with holdfast.Client(job, tensors) as client:
        client.save(1)
        client.wait(1)
    _, other = state("a", "c")
    with holdfast.Client(job, other) as client:
        with pytest.raises(holdfast.InvalidArgumentError, match="'c'"):
            client.restore()
        assert any("'b'" in difference for difference in client.differences())


def test_errors_are_exceptions_with_code_and_message(cluster, job, monkeypatch):
    arrays, tensors = state("a")
    with pytest.raises(holdfast.InvalidArgumentError, match="rank is 5") as caught:
        holdfast.Client(job, tensors, rank=5, world=2, run_id="x")
    assert isinstance(caught.value, holdfast.HoldfastError) and caught.value.code == 1
    with pytest.raises(holdfast.InvalidArgumentError, match="image_format .* is '3'"):
        holdfast.Client(job, tensors, image_format=3)
    with pytest.raises(holdfast.InvalidArgumentError, match="zero bytes"):
        holdfast.Client(job, [holdfast.Tensor.of("a\0b", arrays["a"])])
    with pytest.raises(holdfast.UnavailableError):
        holdfast.Client(job, tensors, socket_path="/nowhere/agent.sock", connect_timeout=0.1)
    with pytest.raises(ValueError, match="contiguous"):
        holdfast.Tensor.of("t", numpy.zeros((4, 4))[:, 1])
    with holdfast.Client(job, tensors) as client:
        client.save(5)
        with pytest.raises(holdfast.AlreadyExistsError):
            client.save(5)
        with pytest.raises(holdfast.NotFoundError):
            client.wait(77, timeout=1)
    with pytest.raises(holdfast.FailedPreconditionError, match="closed"):
        client.save(6)
    client.close()


def test_a_background_failure_is_raised_once(cluster, job):
    _, tensors = state("a", size=1 << 20)
    client = holdfast.Client(job, tensors, agent_timeout=5.0)
    client.save(1)
    client.wait(1)
    cluster.stop_agent()
    client.save(2)  # accepted, but the agent never answers
    time.sleep(0.5)
    cluster.kill_agent()
    found = []
    deadline = time.monotonic() + 30
    calls_after = 0
    while calls_after < 5 and time.monotonic() < deadline:
        calls_after += len(found)
        try:
            client.guard()
        except holdfast.HoldfastError as error:
            assert error.asynchronous and error.code == holdfast.UnavailableError.code
            assert "background, step 2" in str(error)
            found.append(error.step)
        time.sleep(0.05)
    cluster.start_agent()
    assert found == [2]
    with pytest.raises(holdfast.UnavailableError, match="step 2"):
        client.close()


def test_the_interpreter_runs_while_a_call_waits(cluster, job):
    _, tensors = state("a")
    with holdfast.Client(job, tensors, rank=0, world=2, run_id="lonely") as client:
        client.save(1)
        ticks = 0
        done = threading.Event()

        def wait():
            with pytest.raises(holdfast.DeadlineExceededError):
                client.wait(1, timeout=0.5)
            done.set()
        thread = threading.Thread(target=wait)
        thread.start()
        while not done.wait(0.001):
            ticks += 1
        thread.join()
        assert ticks > 20


def test_ctrl_c_ends_a_wait(cluster, job):
    program = (
        "import holdfast, numpy, sys\n"
        "t = [holdfast.Tensor.of('a', numpy.zeros(8))]\n"
        f"c = holdfast.Client({job!r}, t, rank=0, world=2, run_id='x')\n"
        "c.save(1)\n"
        "print('ready', flush=True)\n"
        "try: c.wait(1, timeout=600)\n"
        "except KeyboardInterrupt: print('interrupted', flush=True); sys.exit(3)\n")
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=20)
    assert (out, child.returncode) == ("interrupted\n", 3)


def test_a_forked_child_does_nothing(cluster, job):
    _, tensors = state("a")
    with holdfast.Client(job, tensors) as client:
        client.save(1)
        pid = os.fork()
        if pid == 0:
            try:
                client.save(2)
                os._exit(1)
            except holdfast.FailedPreconditionError:
                client.close()
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        client.wait(1)
        client.save(2)
        client.wait(2)


def test_exit_without_close_keeps_the_saves(cluster, job):
    program = (
        "import holdfast, numpy\n"
        "a = numpy.full(1 << 20, 7.0)\n"
        f"c = holdfast.Client({job!r}, [holdfast.Tensor.of('a', a)])\n"
        "c.save(1)\n")
    done = subprocess.run([sys.executable, "-c", program], timeout=30, capture_output=True,
                          text=True)
    assert (done.returncode, done.stderr) == (0, "")
    a = numpy.zeros(1 << 20)
    with holdfast.Client(job, [holdfast.Tensor.of("a", a)]) as client:
        assert client.restore().version.step == 1
    assert (a == 7.0).all()


def test_records_need_no_client():
    holdfast.records.step(1)
    holdfast.records.describe_communicator(7, [0, 1], 0, holdfast.records.Role.DATA)
    with holdfast.records.collective(holdfast.records.Kind.ALL_REDUCE, 100, communicator=7):
        pass
    holdfast.records.forget_communicator(7)
    with pytest.raises(holdfast.InvalidArgumentError):
        holdfast.records.describe_communicator(0, [0, 1], 5)


@pytest.mark.parametrize("cxx, python", [("CollectiveKind", records.Kind),
                                         ("CommunicatorRole", records.Role)])
def test_kinds_and_roles_have_the_numbers_of_the_library(cxx, python):
    root = pathlib.Path(__file__).parents[2]
    header = (root / "storage/collective/collective.h").read_text()
    body = re.search(rf"enum class {cxx} : \w+ {{(.*?)}};", header, re.DOTALL).group(1)
    numbers = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper(): int(number)
               for name, number in re.findall(r"k(\w+) = (\d+)", body)}
    assert numbers == {one.name: one.value for one in python}
