#!/usr/bin/env python3
"""Writes a snapshot of a large job, in the form of /api/snapshot: a recording for the test of the page.

The figures follow one shape: eight ranks a node, one straggler, one silent node, commits every 20 s and one
incident. Names are what a user could choose, so one has markup.
"""

import argparse
import datetime
import json
import random

NOW_MS = 1_760_000_000_000
JOB = "pretrain-405b"


def utc(ms):
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def job_json(name, ranks, incarnation=3):
    return {
        "job": name, "uid": 1000, "phase": "joined", "state": "running", "ended_at": None, "not_durable_why": "",
        "keep_last": 0, "keep_every": 0, "incarnation": incarnation, "world": ranks, "ranks_joined": ranks,
        "memory_committed": "3-18240", "memory_committed_at": utc(NOW_MS - 9_000),
        "peer_committed": "3-18238", "peer_committed_at": utc(NOW_MS - 31_000), "peer_target": "3-18240",
        "peer_target_held": 1201, "peer_members": ranks // 8, "not_protected_why": "",
        "disk_committed": "3-18230", "disk_committed_at": utc(NOW_MS - 192_000), "committed_at": utc(NOW_MS - 9_000),
        "restorable": "3-18240", "restorable_tier": "memory", "not_restorable_why": "", "under_protected": [],
        "pending_versions": 1, "pending_bytes": 0, "committed_total": 18_000, "aborted_total": 2,
        "newest_seen_step": 18_241,
    }


def version_json(i):
    tiers = ["memory"] if i < 1 else ["memory", "peer"] if i < 3 else ["disk"]
    at = NOW_MS - 9_000 - i * 20_000
    return {
        "job": JOB, "version": f"3-{18240 - i}", "incarnation": 3, "step": 18240 - i,
        "survives": "any 2 nodes of a group" if i < 3 else "the loss of all memory", "state": "committed",
        "abandoned": False, "tiers": tiers, "available": tiers, "bytes": 6_480_000_000_000, "world": 10_240,
        "time": utc(at), "age_seconds": (NOW_MS - at) // 1000, "pinned": i == 5, "restorable": True, "why_not": "",
        "disputed": [], "verification": {
            "time": utc(NOW_MS - 40_000), "deep": True, "result": "DAMAGED" if i == 4 else "ok", "ok": 20_478,
            "damaged": 2 if i == 4 else 0, "missing": 0, "unchecked": 0, "left_out": 0 if i < 5 else 20_000,
        } if i > 2 else None,
    }


def goodput(observed_ms):
    lost = {"infrastructure_recovery_ms": 5_200, "checkpoint_restore_ms": 6_900, "program_startup_ms": 14_300,
            "wasted_progress_ms": 9_000}
    productive = observed_ms - sum(lost.values())
    return {"observed_ms": observed_ms, "ettr": productive / observed_ms, "productive_ms": productive, **lost,
            "wasted_unknown": False}


def snapshot(ranks, now_ms=NOW_MS, markup=False):
    rng = random.Random(7)
    nodes = [f"gpu-{n:04}" for n in range(max(1, ranks // 8))]
    rows = []
    for rank in range(ranks):
        stall = rng.randrange(0, 1900)
        wait = max(0, int(rng.gauss(42_000, 4_000)))
        silent = rng.randrange(0, 400)
        if rank == 4711 % ranks:
            wait = 900  # the straggler does not wait
        if rank // 8 == 77 % len(nodes):
            stall, silent = 41_000 + rank % 8 * 900, 40_500
        tensor, data, pipeline = rank % 8, rank // 8 % 160, rank // 1280
        step = 18_241 if stall < 30_000 else 18_230
        lag = [3, 61_000] if rank // 64 == 9 % max(1, ranks // 64) else [1, 9_000]  # a group of 8 nodes
        rows.append([rank, rank // 8, step, stall, silent, wait, data, tensor, pipeline, *lag])
    evil = "<script>window.broken=1</script><img src=x onerror=window.broken=1>"
    incident = {
        "id": 12, "job": JOB, "time": utc(now_ms - 420_000), "kind": "node lost",
        "what": "node gpu-0077 does not answer" + (evil if markup else ""),
        "evidence": ["its agent was last seen 3.0 s before", evil if markup else "7 peers cannot reach it"],
        "ranks": list(range(616, 624)), "nodes": ["gpu-0077"], "plan": "restart on a spare", "state": "recovered",
        "detect_ms": 3_010, "decide_ms": 3_020, "stop_ms": 5_200, "place_ms": 7_900, "restore_ms": 12_100, "first_step_ms": 26_400,
        "lost_steps": 1, "restored": "2-18210",
    }
    older = {**incident, "id": 9, "time": utc(now_ms - 7_200_000), "kind": "straggler", "state": "noted",
             "what": "rank 4711 on gpu-0588 is late", "nodes": ["gpu-0588"], "detect_ms": 20_000, "decide_ms": None,
             "stop_ms": None, "place_ms": None, "restore_ms": None, "first_step_ms": None, "lost_steps": None, "restored": None}
    again = {**older, "id": 7, "time": utc(now_ms - 9_200_000)}
    marks = {
        "memory": [[f"3-{18240 - i}", now_ms - 9_000 - i * 20_000] for i in range(170)][::-1],
        "peer": [[f"3-{18238 - 2 * i}", now_ms - 31_000 - i * 40_000] for i in range(80)][::-1],
        "disk": [[f"3-{18230 - 10 * i}", now_ms - 192_000 - i * 200_000] for i in range(17)][::-1],
    }
    jobs = [job_json(JOB, ranks)]
    if markup:
        jobs.append(job_json(evil, 8))
    return {
        "schema": 2, "kind": "ui", "time": utc(now_ms), "time_ms": now_ms, "loaded": True,
        "status": {
            "time": utc(now_ms), "health": "HOLDFAST_WARN", "cluster": "atlas", "epoch": 4,
            "findings": [{
                "code": "NODE_DOWN", "level": "HOLDFAST_WARN", "subject": "node gpu-0077",
                "message": "its agent does not answer, last seen 7m00s ago",
                "next": "holdfast advise --without gpu-0077",
            }],
            "page": "http://127.0.0.1:8080/",
            "nodes": [{
                "node": n, "alive": n != "gpu-0077", "address": f"10.0.0.1:{7100 + i}",
                "memory_bytes": 10_200_000_000, "disk_bytes": 50_000_000_000, "disk_free_percent": 61 - i % 7, "seen_at": utc(now_ms), "warnings": [],
                "arena_bytes": 16 << 30, "arena_reserved_bytes": 12 << 30,
                "peer_address": f"10.0.0.1:{9000 + i}", "parity_bytes": 1_300_000_000, "labels": {"rack": f"r{i // 16}"},
                "memberships": [],
            } for i, n in enumerate(nodes)],
            "quarantine": [{
                "node": nodes[3 % len(nodes)], "why": "3 launches in a row failed on it", "time": utc(now_ms),
            }],
            "runs": [{
                "job": JOB, "phase": "running", "why": "", "run_id": "pretrain-405b.3", "incarnation": 3,
                "nnodes": len(nodes) - 2, "ranks_per_node": 8, "restarts": 2, "restarts_max": 20,
                "started": utc(now_ms - 80_000_000), "nodes": nodes[:-2], "command": ["python3", "train.py"],
            }],
            "jobs": jobs,
        },
        "versions": {"time": utc(now_ms), "versions": [version_json(i) for i in range(60)], "aborted_left_out": 2},
        "incidents": {"time": utc(now_ms), "incidents": [incident, older, again]},
        "history": {
            "jobs": [{
                "job": j["job"], "since_ms": now_ms - 80_000_000, "step_seconds": 9.0, "marks": marks,
                "restarts": [[3, now_ms - 393_000]], "hour": goodput(3_600_000), "day": goodput(80_000_000),
            } for j in jobs],
            "capacity": [[now_ms - 3_600_000 + i * 10_000, 13_000_000_000_000 + i * 2_000_000, 1_660_000_000_000,
                          60_000_000_000_000 + i * 900_000_000, 58 - i // 120,
                          len(nodes) * (16 << 30), len(nodes) * (12 << 30), 25 - i // 90] for i in range(361)],
        },
        "ranks": [{
            "job": JOB, "nodes": nodes, "rows": rows,
            "columns": ["rank", "node", "step", "stall_ms", "silent_ms", "wait_us", "data", "tensor", "pipeline",
                        "parity_lag_versions", "parity_lag_ms"],
        }],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=10_240)
    print(json.dumps(snapshot(parser.parse_args().ranks)))
