#!/usr/bin/env python3
"""One rank of a job on NCCL with known collectives. Compares the profiler plugin's records with NCCL's own log.

The rank has a client, whose table of collectives (docs/formats/collective-table.md) it reads from its own memory.
bench/gpu_parts.py starts the ranks. The last line of the output is a JSON object."""

import argparse
import collections
import json
import os
import pathlib
import re
import struct
import sys
import time

KINDS = ("Other", "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AlltoAll", "Send", "Recv",
         "Barrier")
#: Bytes of an element by the number of ncclDataType_t: int8, uint8, int32, uint32, int64, uint64, float16, float32,
#: float64, bfloat16, float8e4m3, float8e5m2.
TYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
CALL = re.compile(r"NCCL INFO (\w+): opCount \w+ sendbuff .* count (\d+) datatype (\d+) .*\[nranks=(\d+)\]")
LOADED = re.compile(r"PROFILER/Plugin: [Ll]oaded (.*)")
REFUSED = re.compile(r"Duplicate GPU detected.*")

TABLE_AT, TABLE_LAYOUT = 8192, 0x5443_4648 << 32 | 2
RING_AT, RING_ENTRIES, ENTRY_BYTES = 411_968, 4096, 128


def calls_of(log):
    """Returns a list of (function, bytes, ranks of the communicator) from a log with NCCL_DEBUG_SUBSYS=COLL."""
    found = []
    for line in log.splitlines():
        call = CALL.search(line)
        if call:
            name, count, datatype, ranks = call[1], int(call[2]), int(call[3]), int(call[4])
            size = TYPE_BYTES[datatype] if datatype < len(TYPE_BYTES) else 0
            found.append((name, count * size, ranks))
    return found


def plugin_of(log):
    """Returns what NCCL logs about the plugin that it has loaded, with the version of the interface. None: nothing."""
    loaded = LOADED.search(log)
    return loaded[1].strip() if loaded else None


def records_of(memory):
    """Returns the completed operations in a control block as (function, bytes), oldest first."""
    def word(at):
        return struct.unpack_from("<Q", memory, TABLE_AT + at)[0]

    found = []
    head = word(128)
    for ticket in range(max(0, head - RING_ENTRIES), head):
        at = RING_AT + ticket % RING_ENTRIES * ENTRY_BYTES
        if word(at) == 2 * ticket + 2:
            kind = word(at + 88) & 255
            found.append((KINDS[kind] if kind < len(KINDS) else str(kind), word(at + 24)))
    return found


def own_control_block():
    """Returns the control block of this process's client. None: the process has no segment."""
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        addresses, access, *rest = line.split(maxsplit=5)
        if "memfd:" not in line or "s" not in access:
            continue
        begin, end = (int(part, 16) for part in addresses.split("-"))
        if end - begin < 1 << 20:
            continue
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            memory.seek(begin)
            block = memory.read(1 << 20)
        if struct.unpack_from("<Q", block, TABLE_AT)[0] == TABLE_LAYOUT:
            return block
    return None


def wait_for_records(count, seconds):
    """Returns the records as soon as there are `count`, or those of the end of the time."""
    until = time.monotonic() + seconds
    while True:
        block = own_control_block()
        records = [] if block is None else records_of(block)
        if len(records) >= count or time.monotonic() > until:
            return records
        time.sleep(0.05)


def differences(calls, records):
    """Returns what only NCCL's log has, and what only the plugin's records have, as counts by (function, bytes)."""
    logged = collections.Counter((name, size) for name, size, _ in calls)
    recorded = collections.Counter(records)
    return {f"{name} {size}": count for (name, size), count in (logged - recorded).items()}, \
        {f"{name} {size}": count for (name, size), count in (recorded - logged).items()}


def collectives(dist, torch, device, world):
    """Runs collectives of several kinds, types and sizes, and checks the results."""
    for size in (256, 1 << 20):
        x = torch.ones(size, device=device)
        for _ in range(3):
            dist.all_reduce(x)
        assert x[0].item() == world**3, x[0]
        half = torch.ones(size, device=device, dtype=torch.bfloat16)
        gathered = torch.zeros(size * world, device=device, dtype=torch.bfloat16)
        for _ in range(2):
            dist.all_gather_into_tensor(gathered, half)
        assert gathered.sum().item() == size * world
        part = torch.zeros(size, device=device, dtype=torch.int64)
        dist.reduce_scatter_tensor(part, torch.ones(size * world, device=device, dtype=torch.int64))
        assert part[0].item() == world
        sent = torch.full((size,), 7, device=device, dtype=torch.uint8)
        dist.broadcast(sent, 0)
        assert sent[-1].item() == 7


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--socket", required=True)
    parser.add_argument("--group", required=True, help="file through which the ranks find each other")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    args = parser.parse_args()
    import torch
    import torch.distributed as dist

    import holdfast.torch as hf
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo", init_method=f"file://{args.group}",
                            rank=args.rank, world_size=args.world)
    # One job per rank: the ranks need no common commit.
    with hf.Checkpointer(f"nccl-{args.rank}", {"t": {"t": torch.zeros(4)}}, rank=0, world=1,
                         run_id=f"nccl-{os.getpid()}", socket_path=args.socket) as ckpt:
        ckpt.save(0)
        if args.device == "cpu":
            hf.record_collectives()
        collectives(dist, torch, args.device, args.world)
        if args.device == "cuda":
            torch.cuda.synchronize()
        log = pathlib.Path(os.environ.get("NCCL_DEBUG_FILE", ""))
        calls = calls_of(log.read_text()) if log.is_file() else []
        records = wait_for_records(max(len(calls), 1), 3)
        missing, more = differences(calls, records)
        print(json.dumps({"calls": len(calls), "records": len(records), "ranks": [ranks for _, _, ranks in calls][:1],
                          "only_logged": missing, "only_recorded": more}), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
