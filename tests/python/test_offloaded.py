"""State in host memory and in files: taken from where it lies."""

import os
import pathlib
import re

import holdfast.torch as hf
import pytest
import torch


def anonymous_bytes():
    """This process's own memory: without what is mapped of files, and of the agent's."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) << 10


def test_host_memory_is_copied_once(cluster, job):
    """As ZeRO-Offload has it: from where it is into the agent's memory, and nowhere else."""
    offloaded = {"exp_avg": torch.rand(8 << 20), "exp_avg_sq": torch.rand(8 << 20)}
    size = sum(tensor.nbytes for tensor in offloaded.values())
    with hf.Checkpointer(job, {"optim": offloaded}) as ckpt:
        ckpt.save(0)  # describes it, and starts what threads there are
        ckpt.wait(0)
        before = anonymous_bytes()
        ckpt.save(1, wait_for_slot=10)
        ckpt.wait(1)
        assert anonymous_bytes() - before < size // 8
        assert ckpt.stats()["bytes_copied"] < 2.1 * size
    # What is not dense has to be copied once more: the measure sees that.
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
        # By another way than the mapping, as those do who swap.
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
    assert path.read_bytes()[16:] == newest[16:]  # what is no tensor is not saved
    with hf.Checkpointer(job, state()) as ckpt:
        assert ckpt.restore(hf.Version(1, 0)) == 1
    assert path.read_bytes()[16:] == saved[16:]


def test_files_that_do_not_fit(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(bytes(100))
    for shape, offset, message in (([26], 0, "has 100 bytes"), ([25], 4, "take 100"),
                                   ([4], 2, "multiple of the 4 bytes"), ([0], 0, "take 0"),
                                   ([4], -4, "multiple")):
        with pytest.raises(ValueError, match=message):
            hf.file_tensor(path, torch.float32, shape, offset)
    with pytest.raises(ValueError, match="no regular file"):
        hf.file_tensor(tmp_path, torch.float32, [1])
    with pytest.raises(FileNotFoundError):
        hf.file_tensor(tmp_path / "none", torch.float32, [1])
    assert path.stat().st_size == 100
