"""bench/gpu_nccl.py: what it reads in NCCL's log and in a client's table of collectives."""

import json
import os
import pathlib
import subprocess
import sys

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import gpu_nccl  # noqa: E402

# Lines of NCCL 2.28 with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,COLL.
LOG = """\
node1:4142:4142 [0] NCCL INFO PROFILER/Plugin: Could not find: libnccl-profiler.so
node1:4142:4160 [0] NCCL INFO PROFILER/Plugin: Loaded Holdfast (v5)
node1:4142:4142 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x7f2e60000000 recvbuff 0x7f2e60000000 acc (nil) count \
1048576 datatype 7 op 0 root 0 comm 0x55d5c0a0 [nranks=2] stream 0x55d5bd30 task 0 globalrank 0
node1:4142:4142 [0] NCCL INFO AllReduce: opCount 1 sendbuff 0x7f2e60000000 recvbuff 0x7f2e60000000 count 1048576 \
datatype 7 op 0 root 0 comm 0x55d5c0a0 [nranks=2] stream 0x55d5bd30
node1:4142:4142 [0] NCCL INFO AllGather: opCount 1f sendbuff 0x7f2e60800000 recvbuff 0x7f2e61000000 acc (nil) count 256 \
datatype 9 op 0 root 0 comm 0x55d5c0a0 [nranks=2] stream 0x55d5bd30 task 0 globalrank 0
node1:4142:4142 [0] NCCL INFO comm 0x55d5c0a0 rank 0 nranks 2 cudaDev 0 busId 1000 - Destroy COMPLETE
"""


def test_the_log_of_nccl_is_parsed():
    calls = gpu_nccl.calls_of(LOG)
    assert calls == [("AllReduce", 4194304, 2), ("AllReduce", 4194304, 2), ("AllGather", 512, 2)]
    assert gpu_nccl.plugin_of(LOG) == "Holdfast (v5)"
    assert gpu_nccl.calls_of("") == [] and gpu_nccl.plugin_of(LOG.splitlines()[0]) is None
    assert gpu_nccl.REFUSED.search("init.cc:941 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA "
                                   "device 1000")


def test_each_difference_of_log_and_records_is_named():
    calls = gpu_nccl.calls_of(LOG)
    records = [(name, size) for name, size, _ in calls]
    assert gpu_nccl.differences(calls, records) == ({}, {})
    assert gpu_nccl.differences(calls, records[1:]) == ({"AllReduce 4194304": 1}, {})
    assert gpu_nccl.differences(calls, [("Broadcast", 512), *records[:2]]) == ({"AllGather 512": 1},
                                                                               {"Broadcast 512": 1})


def test_the_records_of_a_rank_are_read_from_its_own_memory(cluster, tmp_path):
    command = [sys.executable, str(BENCH / "gpu_nccl.py"), "--socket", os.environ["HOLDFAST_SOCKET"], "--device", "cpu",
               "--world", "2", "--group", str(tmp_path / "group")]
    ranks = [subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    for rank in ranks:
        output = rank.communicate(timeout=120)[0]
        assert rank.returncode == 0, output
        report = json.loads(output.splitlines()[-1])
        # The sizes are in bytes: float32, bfloat16, int64 and bytes.
        assert report["only_recorded"] == {
            "AllReduce 1024": 3, "AllGather 512": 2, "ReduceScatter 2048": 1, "Broadcast 256": 1,
            "AllReduce 4194304": 3, "AllGather 2097152": 2, "ReduceScatter 8388608": 1, "Broadcast 1048576": 1}
