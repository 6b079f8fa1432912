"""A trainer ends promptly in every way, leaves no processes behind, and keeps its saved versions."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import holdfast.torch as hf
import pytest
import torch
from cluster import wait_until

PRELUDE = """
import os, sys, time
import holdfast.torch as hf, torch
from torch.utils.data import DataLoader

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, i):
        return torch.full((4,), float(i))

def main(job):
    model = torch.nn.Linear(4, 4)
    optim = torch.optim.SGD(model.parameters(), lr=0.01)
    ckpt = hf.Checkpointer(job, {"model": model, "optim": optim})
    assert ckpt.restore() == 0
    def step(i, x):
        optim.zero_grad(); model(x).sum().backward(); optim.step()
        ckpt.save(i, wait_for_slot=10)
"""


def start(tmp_path, job, body):
    program = tmp_path / "trainer.py"
    program.write_text(PRELUDE + textwrap.indent(textwrap.dedent(body), "    ")
                       + "\nif __name__ == '__main__':\n    main(sys.argv[1])\n")
    return subprocess.Popen([sys.executable, str(program), job], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True)


def restored(job):
    model = torch.nn.Linear(4, 4)
    with hf.Checkpointer(job, {"model": model,
                               "optim": torch.optim.SGD(model.parameters(), lr=0.01)}) as ckpt:
        return ckpt.restore()


def processes_of(session):
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


def finish(child):
    out, errors = child.communicate(timeout=200)
    # Python's resource tracker of spawned processes also ends, after its pipe is closed.
    wait_until(lambda: processes_of(child.pid) == [], what="the end of all its processes")
    return child.returncode, out, errors


def test_an_exception_between_workers_of_both_kinds(cluster, job, tmp_path):
    code, _, errors = finish(start(tmp_path, job, """
        i = 0
        for kind, workers in (("fork", 2), ("spawn", 1)):
            for x in DataLoader(Data(), batch_size=4, num_workers=workers,
                                multiprocessing_context=kind):
                step(i, x)
                i += 1
        raise RuntimeError("the loop broke")
        """))
    assert code == 1 and "the loop broke" in errors.splitlines()[-1], errors
    assert restored(job) == 8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_loop(cluster, job, tmp_path, number):
    child = start(tmp_path, job, """
        for i in range(10**9):
            step(i, torch.ones(2, 4))
            if i == 5:
                ckpt.wait(5)
                print("ready", flush=True)
        """)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.1)
    os.kill(child.pid, number)
    before = time.monotonic()
    code, _, errors = finish(child)
    assert time.monotonic() - before < 60
    assert code == -number, errors
    assert restored(job) >= 6


def test_a_signal_in_a_restore(cluster, job):
    model = torch.nn.Linear(4, 4)
    with hf.Checkpointer(job, {"m": model}) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    with hf.Checkpointer(job, {"m": model}) as ckpt:
        ckpt.save(1, wait_for_slot=10)
        ckpt.wait(1)
        cluster.stop_agent()
        try:
            for _ in range(2):
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                with pytest.raises(KeyboardInterrupt):
                    ckpt.restore(timeout=500)
        finally:
            os.kill(cluster.agents[0].pid, signal.SIGCONT)
        assert ckpt.restore() in (1, 2)


def test_exit_without_close(cluster, job, tmp_path):
    code, _, errors = finish(start(tmp_path, job, "step(0, torch.ones(2, 4))"))
    assert (code, errors) == (0, "")
    assert restored(job) == 1


def test_no_threads_or_files_stay_open(cluster, job):
    def open_files_and_threads():
        return (sorted(os.readlink(path) for path in pathlib.Path("/proc/self/fd").iterdir()
                       if path.is_symlink()).__len__(), len(os.listdir("/proc/self/task")))

    def once():
        model = torch.nn.Linear(4, 4)
        with hf.Checkpointer(job, {"m": model}) as ckpt:
            ckpt.restore()
            ckpt.save(once.step)
            ckpt.wait(once.step)
        once.step += 1
    once.step = 0
    once()
    before = open_files_and_threads()
    for _ in range(5):
        once()
    assert open_files_and_threads() == before


def test_a_forked_child_cannot_use_the_checkpointer(cluster, job):
    model = torch.nn.Linear(4, 4)
    with hf.Checkpointer(job, {"m": model}) as ckpt:
        ckpt.save(0)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ckpt.save(1)
            except hf.HoldfastError as error:
                code = 0 if "forked" in str(error) else 2
            ckpt.close()
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert ckpt.save(1, wait_for_slot=10)
        ckpt.wait(1)


def test_training_goes_on_without_an_agent(cluster, job):
    """The checkpointer reconnects when an agent runs again."""
    model = torch.nn.Linear(4, 4)
    optim = torch.optim.SGD(model.parameters(), lr=0.01)
    with hf.Checkpointer(job, {"m": model, "o": optim}) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
        cluster.kill_agent()
        missed = 0
        for step in range(1, 100):
            model(torch.ones(1, 4)).sum().backward()
            optim.step()
            try:
                missed += not ckpt.save(step)
            except hf.HoldfastError as error:
                assert error.asynchronous, error
        assert missed > 0
        cluster.start_agent()
        deadline = time.monotonic() + 30
        while not ckpt.save(step := step + 1):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        ckpt.wait(step)
        # close() may raise the failures of the meantime once more.
        with contextlib.suppress(hf.HoldfastError):
            ckpt.close()
    assert restored_plain(job) == step + 1


def restored_plain(job):
    model = torch.nn.Linear(4, 4)
    optim = torch.optim.SGD(model.parameters(), lr=0.01)
    with hf.Checkpointer(job, {"m": model, "o": optim}) as ckpt:
        return ckpt.restore()
