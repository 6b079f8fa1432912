"""Failures around a training are counted and logged, and the training goes on."""

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import holdfast
import holdfast.torch as hf
import pytest
import torch
from cluster import Cluster, wait_until
from torch import nn

LOOP = """
import os, sys, torch
import holdfast.torch as hf
torch.manual_seed(0)
model = torch.nn.Linear(1000, 700)
optim = torch.optim.SGD(model.parameters(), lr=0.1)
ckpt = hf.Checkpointer(job=sys.argv[1], state={"model": model, "optim": optim})
for step in range(ckpt.restore(), int(sys.argv[2])):
    x = torch.randn(8, 1000)
    optim.zero_grad()
    model(x).square().mean().backward()
    optim.step()
    ckpt.save(step, wait_for_slot=10)
    if ckpt.latest() is None or step % 4 == 3:
        ckpt.wait(step)
ckpt.wait(step)
h = ckpt.health()
ckpt.close()
torch.save(model.state_dict(), sys.argv[3])
print(h)
"""


@contextlib.contextmanager
def small_disk(tmp_path, size):
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
                      capture_output=True).returncode:
        pytest.skip("no permission to mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_does_not_stop_the_loop_of_the_readme(tmp_path):
    with small_disk(tmp_path, "7m") as disk:
        cluster = Cluster(data=disk).start()
        try:
            environment = {**os.environ, "HOLDFAST_SOCKET": cluster.socket()}
            out = tmp_path / "model.pt"
            ran = subprocess.run([sys.executable, "-c", LOOP, "full", "40", str(out)],
                                 env=environment, capture_output=True, text=True, timeout=120)
            assert ran.returncode == 0, ran.stderr
            assert "OutOfSpaceError" in ran.stdout and "No space left" in ran.stdout
            assert "OutOfSpaceError" in ran.stderr  # in the log
            # The last version is in memory, bit for bit.
            os.environ["HOLDFAST_SOCKET"] = cluster.socket()
            model = nn.Linear(1000, 700)
            with hf.Checkpointer("full", {"model": model, "optim":
                                          torch.optim.SGD(model.parameters(), lr=0.1)}) as ckpt:
                assert ckpt.restore() == 40
                assert ckpt.health().connected
            for name, value in torch.load(out).items():
                assert torch.equal(value, model.state_dict()[name])
        finally:
            os.environ.pop("HOLDFAST_SOCKET", None)
            cluster.stop()


def small(value=0.0):
    model = nn.Linear(4, 4)
    nn.init.constant_(model.weight, value)
    return model


def test_without_an_agent_a_save_returns_at_once(job, monkeypatch):
    cluster = Cluster().start()
    try:
        monkeypatch.setenv("HOLDFAST_SOCKET", cluster.socket())
        model = small()
        with hf.Checkpointer(job, {"model": model}) as ckpt:
            assert ckpt.restore() == 0
            assert ckpt.save(0)
            ckpt.wait(0)
            cluster.kill_agent()
            wait_until(lambda: not ckpt.health().connected, what="detection of the loss")
            for step in range(1, 6):
                model.weight.data = model.weight.data.clone()  # each step needs a new description
                before = time.monotonic()
                assert ckpt.save(step) is False
                assert time.monotonic() - before < 2
            health = ckpt.health()
            assert not health.ok and health.reason
            assert sum(f.count for f in health.failures.values()) >= 5
            assert health.newest == {} or health.newest[hf.Tier.MEMORY].step == 0
            cluster.start_agent()
            wait_until(lambda: ckpt.health().connected, what="the reconnect")
            assert ckpt.save(6, wait_for_slot=10)
            ckpt.wait(6)
            assert ckpt.health().newest[hf.Tier.MEMORY].step == 6
    finally:
        cluster.stop()


def test_a_missing_agent_at_the_first_save(job, monkeypatch):
    cluster = Cluster().start()
    try:
        monkeypatch.setenv("HOLDFAST_SOCKET", cluster.socket())
        with hf.Checkpointer(job, {"model": small()}) as ckpt:
            assert ckpt.restore() == 0
            cluster.kill_agent()
            before = time.monotonic()
            assert ckpt.save(0) is False and ckpt.save(1) is False
            assert time.monotonic() - before < 15
    finally:
        cluster.stop()


def test_a_restore_waits_for_a_missing_agent_until_its_timeout(job, tmp_path):
    with hf.Checkpointer(job, {"model": small()}, socket_path=str(tmp_path / "none")) as ckpt:
        for seconds in (0.2, 1.5):
            before = time.monotonic()
            with pytest.raises(holdfast.UnavailableError):
                ckpt.restore(timeout=seconds)
            assert seconds <= time.monotonic() - before < seconds + 5


def test_a_new_description_waits_for_a_slow_agent(cluster, job):
    with hf.Checkpointer(job, {"t": {"w": torch.ones(4)}}) as ckpt:
        assert ckpt.save(0)
        ckpt.wait(0)
        ckpt.forget()
        cluster.stop_agent()
        threading.Timer(0.5, os.kill, (cluster.agents[0].pid, signal.SIGCONT)).start()
        assert ckpt.save(1)
        ckpt.wait(1)


def test_a_rollback_after_a_nan_loss(cluster, job):
    model = small(1.0)
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    kept = {}

    def step(scale=1.0):
        optim.zero_grad()
        (model(torch.ones(2, 4)).sum() * scale).backward()
        optim.step()
    with hf.Checkpointer(job, {"model": model, "optim": optim}) as ckpt:
        assert ckpt.restore() == 0
        for i in range(5):
            step()
            ckpt.save(i, wait_for_slot=10)
            ckpt.guard()
            kept[i] = [t.clone() for t in (*model.parameters(), *optim.state[model.weight].values())]
        ckpt.wait(4)
        first = ckpt.latest()
        step(math.nan)
        assert model.weight.isnan().all()
        assert ckpt.restore() == 5  # not 0: there are versions
        assert ckpt.restored == first
        found = [*model.parameters(), *optim.state[model.weight].values()]
        assert all(torch.equal(a, b) for a, b in zip(found, kept[4], strict=True))
        # The same steps can be saved again, and are newer than the abandoned versions.
        step()
        assert ckpt.save(5, wait_for_slot=10)
        ckpt.wait(5)
        again = ckpt.latest()
        assert again.incarnation > first.incarnation
        # A second rollback, to a given version.
        step(math.nan)
        assert ckpt.restore(again) == 6
        assert not model.weight.isnan().any()
        assert ckpt.restore(again, dry_run=True) == 6
    other = small()
    with hf.Checkpointer(job, {"model": other, "optim": torch.optim.AdamW(other.parameters())}) as c:
        assert c.restore() == 6
    assert torch.equal(other.weight, model.weight)


def test_a_save_that_waits_for_a_slot_is_not_skipped(cluster, job):
    tensors = {"big": torch.zeros(3 << 20)}
    with hf.Checkpointer(job, {"t": tensors}, random_states=False) as ckpt:
        for step in range(30):
            assert ckpt.save(step, wait_for_slot=30)
        ckpt.wait(29, hf.Tier.SEALED)


def test_tuples_of_tensors(cluster, job):
    carry = {"lstm": (torch.rand(50, 400), torch.rand(50, 400)), "deep": [(torch.ones(3), 5)],
             "plain": (1, "two"), "mixed": ({"x": torch.arange(4)}, (torch.zeros(2), 7.5))}
    with hf.Checkpointer(job, {"carry": carry}) as ckpt:
        assert ckpt.save(0)
        ckpt.wait(0)
        with ckpt.open_version() as reader:
            names = {piece.name for piece in reader.pieces()}
            assert {"carry.lstm.0", "carry.lstm.1", "carry.deep.0.0", "carry.mixed.0.x",
                    "carry.mixed.1.0"} <= names
        reconnects = ckpt.stats()["saves"]
        for step in range(1, 4):  # as a loop detaches them
            carry["lstm"] = tuple(torch.full((50, 400), 10.0 * step + i) for i in range(2))
            carry["plain"] = (step, "two")
            carry["mixed"] = ({"x": torch.arange(4) + step}, (torch.zeros(2) + step, 7.5 + step))
            assert ckpt.save(step, wait_for_slot=10)
        ckpt.wait(3)
        # The client is the same, since other tensors in a tuple need no new description.
        assert ckpt.stats()["saves"] == reconnects + 3
    again = {"lstm": (torch.rand(50, 400), torch.rand(50, 400)), "deep": [(torch.zeros(3), 0)],
             "plain": (0, ""), "mixed": ({"x": torch.zeros(4, dtype=torch.int64)},
                                         (torch.ones(2), 0.0))}
    memory = [t.data_ptr() for t in again["lstm"]]
    with hf.Checkpointer(job, {"carry": again}) as ckpt:
        assert ckpt.restore() == 4
    assert [t.data_ptr() for t in again["lstm"]] == memory  # in place
    assert all(torch.equal(t, torch.full((50, 400), 30.0 + i)) for i, t in enumerate(again["lstm"]))
    assert again["plain"] == (3, "two") and again["deep"][0][1] == 5
    assert torch.equal(again["deep"][0][0], torch.ones(3))
    assert torch.equal(again["mixed"][0]["x"], torch.arange(4) + 3)
    assert torch.equal(again["mixed"][1][0], torch.zeros(2) + 3) and again["mixed"][1][1] == 10.5


def test_the_wrappers_of_accelerate_are_unwrapped(cluster, job, monkeypatch):
    # Fake classes with the same names and attributes. test_frameworks.py uses the real package.
    class AcceleratedOptimizer(torch.optim.Optimizer):
        def __init__(self, optimizer):
            self.optimizer = optimizer

    class AcceleratedScheduler:
        def __init__(self, scheduler):
            self.scheduler = scheduler
    for kind in (AcceleratedOptimizer, AcceleratedScheduler):
        kind.__module__ = "accelerate.wrapping"

    def make(lr):
        model = small(2.0)
        optim = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        sched = torch.optim.lr_scheduler.StepLR(optim, 1, 0.5)
        return model, optim, sched
    model, optim, sched = make(0.4)
    model(torch.ones(1, 4)).sum().backward()
    optim.step(), sched.step()
    state = {"m": model, "o": AcceleratedOptimizer(optim), "s": AcceleratedScheduler(sched)}
    with hf.Checkpointer(job, state) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    m, o, s = make(0.1)
    with hf.Checkpointer(job, {"m": m, "o": AcceleratedOptimizer(o),
                               "s": AcceleratedScheduler(s)}) as ckpt:
        assert ckpt.restore() == 1
    assert o.param_groups[0]["lr"] == 0.2 and s.last_epoch == 1
    assert torch.equal(o.state[m.weight]["momentum_buffer"],
                       optim.state[model.weight]["momentum_buffer"])


def test_mistakes_are_named(cluster, job, monkeypatch, caplog):
    model = small()
    monkeypatch.delenv("HOLDFAST_JOB", raising=False)
    cases = [(dict(job=None, state={"m": model}), "HOLDFAST_JOB"),
             (dict(job="ü", state={"m": model}), "job='ü'"),
             (dict(job=7, state={"m": model}), "job=7"),
             (dict(job=job, state={1: model}), r"state\[1\]"),
             (dict(job=job, state=None), "pass a dictionary"),
             (dict(job=job, state=[model]), "pass a dictionary"),
             (dict(job=job, state={"m": model}, verify_replicas=True), "no option verify_replicas")]
    for arguments, words in cases:
        with pytest.raises(holdfast.InvalidArgumentError, match=words):
            hf.Checkpointer(**arguments)
    with hf.Checkpointer(job, {"m": model}) as ckpt:
        for step, words in ((-1, "step=-1"), (6.0, "step=6.0"), (None, "step=None"),
                            (2**63, "step=9223372036854775808"), ("7", "step='7'")):
            with pytest.raises(holdfast.InvalidArgumentError, match=words):
                ckpt.save(step)
        assert ckpt.save(0)
        ckpt.wait(0)
        with pytest.raises(holdfast.DeadlineExceededError, match="1234 ms") as caught:
            ckpt.save(1)
            ckpt.wait(1, hf.Tier.REMOTE, timeout=1.234)
        assert f"holdfast versions {job}" in str(caught.value)


def test_the_job_is_that_of_the_run_by_default(cluster, job, monkeypatch, caplog):
    monkeypatch.setenv("HOLDFAST_JOB", job)
    with hf.Checkpointer(state={"m": small(3.0)}) as ckpt:
        assert ckpt.job == job
        ckpt.save(0)
        ckpt.wait(0)
    assert not caplog.records
    with hf.Checkpointer("another", {"m": small()}) as ckpt:
        assert ckpt.job == "another"
    assert "saved as job 'another'" in caplog.text and job in caplog.text


def test_a_run_uses_the_interpreter_and_the_name_of_its_caller(cluster, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent("""
        import os, sys, torch
        import holdfast.torch as hf
        model = torch.nn.Linear(4, 4)
        with hf.Checkpointer(state={"model": model}) as ckpt:
            ckpt.restore()
            ckpt.save(7)
            ckpt.wait(7)
        print("prefix", sys.prefix, "cwd", os.getcwd(), "venv", os.environ.get("VIRTUAL_ENV"),
              "first", os.environ["PATH"].split(":")[0], file=sys.stderr)
        """))
    environment = {**os.environ, "VIRTUAL_ENV": sys.prefix,
                   "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
    environment.pop("HOLDFAST_JOB", None)
    from cluster import BINARIES
    ran = subprocess.run([str(BINARIES / "holdfast"), "--endpoint", cluster.endpoint, "run", "--job",
                          "of-the-caller", "--", "python", "train.py"], cwd=tmp_path,
                         env=environment, capture_output=True, text=True, timeout=300)
    out = ran.stdout + ran.stderr
    assert ran.returncode == 0, out
    assert f"prefix {sys.prefix} cwd {tmp_path} venv {sys.prefix} first {sys.prefix}/bin" in out
    assert "1-7" in cluster.cli("versions", "of-the-caller").stdout
