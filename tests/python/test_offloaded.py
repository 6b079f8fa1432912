"""State in host memory and in files is saved directly from there."""

import os
import pathlib
import re

import holdfast.torch as hf
import pytest
import torch


def anonymous_bytes():
    """This process's anonymous memory, without mapped files and the agent's memory."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) << 10


def test_host_memory_is_copied_once(cluster, job):
    """Offloaded state, as with ZeRO-Offload, is copied directly into the agent's memory."""
    offloaded = {"exp_avg": torch.rand(8 << 20), "exp_avg_sq": torch.rand(8 << 20)}
    size = sum(tensor.nbytes for tensor in offloaded.values())
    with hf.Checkpointer(job, {"optim": offloaded}) as ckpt:
        ckpt.save(0)  # describes the state, and starts all threads
        ckpt.wait(0)
        before = anonymous_bytes()
        ckpt.save(1, wait_for_slot=10)
        ckpt.wait(1)
        assert anonymous_bytes() - before < size // 8
        assert ckpt.stats()["bytes_copied"] < 2.1 * size
    # A strided tensor needs one more copy, which the measurement must show.
    with hf.Checkpointer(job + "-strided", {"s": torch.rand(4 << 10, 4 << 10).t()}) as ckpt:
        before = anonymous_bytes()
        ckpt.save(0)
        ckpt.wait(0)
        assert anonymous_bytes() - before > 60 << 20


def test_files_are_saved_and_filled(cluster, job, tmp_path):
    path = tmp_path / "0.tensor.swp"
    first, second = torch.rand(3, 1 << 20), torch.rand(1 << 10)
    path.write_bytes(b"head" * 4 + bytes(first.numpy()) + bytes(second.numpy()))

    def state():
        return {"swap": {"a": hf.file_tensor(path, torch.float32, [3, 1 << 20], offset=16),
                         "b": hf.file_tensor(path, torch.float32, [1 << 10],
                                             offset=16 + first.nbytes)}}
    saved, noise = path.read_bytes(), os.urandom(path.stat().st_size)
    with hf.Checkpointer(job, state()) as ckpt:
        before = anonymous_bytes()
        ckpt.save(0)
        ckpt.guard()
        # Written without the mapping, as programs that swap do.
        with open(path, "r+b") as file:
            file.write(noise)
        ckpt.wait(0)
        assert anonymous_bytes() - before < first.nbytes // 2
        assert ckpt.save(1, wait_for_slot=10)
        ckpt.wait(1)
    newest = path.read_bytes()
    path.write_bytes(bytes(len(saved)))
    with hf.Checkpointer(job, state()) as ckpt:
        assert ckpt.restore() == 2
    assert path.read_bytes()[16:] == newest[16:]  # bytes outside of the tensors are not saved
    with hf.Checkpointer(job, state()) as ckpt:
        assert ckpt.restore(hf.Version(1, 0)) == 1
    assert path.read_bytes()[16:] == saved[16:]


def test_files_that_do_not_fit_raise(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(bytes(100))
    for shape, offset, message in (([26], 0, "has 100 bytes"), ([25], 4, "take 100"),
                                   ([4], 2, "multiple of the 4 bytes"), ([0], 0, "take 0"),
                                   ([4], -4, "multiple")):
        with pytest.raises(ValueError, match=message):
            hf.file_tensor(path, torch.float32, shape, offset)
    with pytest.raises(ValueError, match="is not a regular file"):
        hf.file_tensor(tmp_path, torch.float32, [1])
    with pytest.raises(FileNotFoundError):
        hf.file_tensor(tmp_path / "none", torch.float32, [1])
    assert path.stat().st_size == 100
