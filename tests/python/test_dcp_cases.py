"""The cases that torch tests with its own storage, with Holdfast's. README.md has the table."""

import holdfast.torch as hf
import pytest
import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import training
from ranks import run
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import (
    _load_state_dict, _load_state_dict_from_keys)
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def nested(seed=1):
    torch.manual_seed(seed)
    return {"a": {"w": torch.rand(3, 4), "l": [torch.rand(2), seed, {"x": torch.rand(1)}]},
            "n": seed}


def assert_nested(found, seed=1):
    expected = nested(seed)
    assert torch.equal(found["a"]["w"], expected["a"]["w"]) and found["n"] == seed
    assert torch.equal(found["a"]["l"][0], expected["a"]["l"][0]) and found["a"]["l"][1] == seed
    assert torch.equal(found["a"]["l"][2]["x"], expected["a"]["l"][2]["x"])


# ------------------------------------------------------------------------------------- one process

def test_state_that_is_not_flattened(cluster, job):
    dcp.save(nested(), storage_writer=hf.StorageWriter(job, 0),
             planner=dcp.DefaultSavePlanner(flatten_state_dict=False))
    found = {"a": None, "n": 0}
    dcp.load(found, storage_reader=hf.StorageReader(job), planner=dcp.DefaultLoadPlanner(
        flatten_state_dict=False, flatten_sharded_tensors=False))
    assert_nested(found)


def test_all_or_some_keys_into_nothing(cluster, job):
    dcp.save(nested(), storage_writer=hf.StorageWriter(job, 0))
    found = {}
    _load_state_dict(found, hf.StorageReader(job), planner=_EmptyStateDictLoadPlanner(),
                     no_dist=True)
    assert_nested(found)
    found = _load_state_dict_from_keys({"a.w"}, storage_reader=hf.StorageReader(job))
    assert list(found) == ["a"] and torch.equal(found["a"]["w"], nested()["a"]["w"])


class Half(dcp.DefaultSavePlanner):
    """Saves in half the precision."""

    def create_local_plan(self):
        plan = super().create_local_plan()
        for item in plan.items:
            if item.tensor_data is not None:
                item.tensor_data.properties.dtype = torch.float16
        return plan

    def transform_object(self, write_item, object):
        made = super().transform_object(write_item, object)
        return made.half() if isinstance(made, torch.Tensor) else made


class Renamed(dcp.DefaultLoadPlanner):
    """Loads what was saved under older names."""

    def set_up_planner(self, state_dict, metadata=None, is_coordinator=False):
        self.wanted = state_dict
        super().set_up_planner({f"old_{key}": value for key, value in state_dict.items()},
                               metadata, is_coordinator)

    def load_bytes(self, read_item, value):
        self.wanted[read_item.dest_index.fqn[4:]] = torch.load(value)


def test_planners_that_convert_and_rename(cluster, job):
    weight = torch.rand(5, 5)
    dcp.save({"old_w": weight, "old_n": 8}, storage_writer=hf.StorageWriter(job, 0), planner=Half())
    found = {"w": torch.zeros(5, 5), "n": 0}
    dcp.load(found, storage_reader=hf.StorageReader(job), planner=Renamed())
    assert torch.equal(found["w"], weight.half().float()) and found["n"] == 8


def test_cached_plans(cluster, job):
    """The planner caches the plan of the first save. A load in between is a new start of the job."""
    def save(step):
        dcp.save({"w": torch.full((4,), float(step)), "n": step},
                 storage_writer=hf.StorageWriter(job, step),
                 planner=dcp.DefaultSavePlanner(enable_plan_caching=True))

    def load(step):
        found = {"w": torch.zeros(4), "n": 0}
        dcp.load(found, storage_reader=hf.StorageReader(job))
        assert found["n"] == step and (found["w"] == step).all()
    for steps in ((1, 2), (3,), (4, 5)):
        for step in steps:
            save(step)
        load(steps[-1])


class Counter:
    def __init__(self, count):
        self.count, self.table = count, torch.full((3,), float(count))

    def state_dict(self):
        return {"count": self.count, "table": self.table}

    def load_state_dict(self, state):
        self.count, self.table = state["count"], state["table"]


def test_objects_with_a_state_dict(cluster, job):
    values = {"b": b"\x00\xff", "s": {1, 2}, "t": (1, None), "d": torch.float16, "f": float("inf")}
    dcp.save({"counter": Counter(7), "v": values}, storage_writer=hf.StorageWriter(job, 0))
    found = {"counter": Counter(0), "v": dict.fromkeys(values)}
    dcp.load(found, storage_reader=hf.StorageReader(job))
    assert found["counter"].count == 7 and (found["counter"].table == 7).all()
    assert found["v"] == values


def test_saving_a_step_twice_raises(cluster, job):
    dcp.save(nested(), checkpoint_id="ignored", storage_writer=hf.StorageWriter(job, 1))
    with pytest.raises(CheckpointException, match="step 1 is saved already"):
        dcp.save(nested(), storage_writer=hf.StorageWriter(job, 1))
    dcp.save(nested(2), storage_writer=hf.StorageWriter(job, 2))
    found = nested(3)
    dcp.load(found, storage_reader=hf.StorageReader(job))
    assert_nested(found, 2)


def test_unsupported_saves_raise(cluster, job):
    with pytest.raises(hf.HoldfastError, match="use_collectives=False"):
        dcp.save(nested(), storage_writer=hf.StorageWriter(job, 1), use_collectives=False)
    with pytest.raises(CheckpointException, match="'p' is a builtins.object"):
        dcp.async_save({"p": object()}, storage_writer=hf.StorageWriter(job, 1)).result()


# ------------------------------------------------------------------------------------ several ranks

def full(rows=13, columns=6):
    return torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns)


def spread_over(mesh, placements, zero=False):
    from torch.distributed.tensor import distribute_tensor
    return distribute_tensor(full() * (0 if zero else 1), mesh, placements)


def other_placements(job):
    """Loads DTensors with other placements, as plain tensors, and into meta tensors."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    line, grid = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    pair = DeviceMesh("cpu", [1, 2])  # the other ranks hold no part of it
    kinds = [(line, [Shard(0)]), (line, [Shard(1)]), (line, [Replicate()]),
             (grid, [Shard(0), Shard(1)]), (grid, [Replicate(), Shard(0)]),
             (grid, [Shard(1), Replicate()]), (grid, [Shard(0), Shard(0)]), (pair, [Shard(0)])]
    dcp.save({f"k{i}": spread_over(*kind) for i, kind in enumerate(kinds)},
             storage_writer=hf.StorageWriter(job, 0))
    for shift in (0, 1, 3):
        found = {f"k{i}": spread_over(*kinds[(i + shift) % 7], zero=True) for i in range(8)}
        dcp.load(found, storage_reader=hf.StorageReader(job))
        for name, tensor in found.items():
            assert torch.equal(tensor.full_tensor(), full()), (name, shift)
    found = {f"k{i}": torch.zeros(13, 6) for i in range(7)}
    found["k7"] = torch.empty(13, 6, device="meta")
    dcp.load(found, storage_reader=hf.StorageReader(job))
    assert all(torch.equal(tensor, full()) for tensor in found.values())


def own_names(job):
    """Each rank has a tensor of a unique name. A tensor of all ranks is saved once."""
    rank = dist.get_rank()
    state = {"all": full(), f"stage{rank}": torch.full((3,), float(rank)), "n": rank}
    dcp.save(state, storage_writer=hf.StorageWriter(job, 0),
             planner=dcp.DefaultSavePlanner(dedup_save_to_lowest_rank=True))
    found = {"all": torch.zeros(13, 6), f"stage{rank}": torch.zeros(3), "n": None}
    dcp.load(found, storage_reader=hf.StorageReader(job))
    assert torch.equal(found["all"], full()) and (found[f"stage{rank}"] == rank).all()
    assert found["n"] == 0  # of the lowest rank, as with torch's own storage


def one_fails(job):
    """A failure on one rank raises on all and names that rank. The next save succeeds."""
    bad = {"p": object()} if dist.get_rank() == 2 else {"p": 1}
    with pytest.raises(CheckpointException, match=r"ranks:dict_keys\(\[2\]\)"):
        dcp.save({"w": full(), **{f"r{dist.get_rank()}": bad}},
                 storage_writer=hf.StorageWriter(job, 0, timeout=5))
    dcp.save({"w": full()}, storage_writer=hf.StorageWriter(job, 1))
    wrong = torch.zeros(13, 6 if dist.get_rank() != 1 else 7)
    with pytest.raises(CheckpointException, match="(?s)RANK 1.*[Ss]ize mismatch"):
        dcp.load({"w": wrong}, storage_reader=hf.StorageReader(job))


def in_groups(job):
    """Two groups save separately, and then one rank alone."""
    groups = [dist.new_group([0, 3]), dist.new_group([1, 2])]
    mine = 0 if dist.get_rank() in (0, 3) else 1
    state = {"w": full() + mine}
    dcp.save(state, storage_writer=hf.StorageWriter(f"{job}-{mine}", 0), process_group=groups[mine])
    found = {"w": torch.zeros(13, 6)}
    dcp.load(found, storage_reader=hf.StorageReader(f"{job}-{mine}", process_group=groups[mine]),
             process_group=groups[mine])
    assert torch.equal(found["w"], state["w"])
    if dist.get_rank() == 3:
        dcp.save({"x": full()}, storage_writer=hf.StorageWriter(f"{job}-a", 0), no_dist=True)
        found = {"x": torch.zeros(13, 6)}
        dcp.load(found, storage_reader=hf.StorageReader(f"{job}-a", no_dist=True), no_dist=True)
        assert torch.equal(found["x"], full())
    dist.barrier()


def sharded_tensors(job):
    """ShardedTensor, the older type of sharded tensors."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    spec = ChunkShardingSpec(0, [f"rank:{rank}/cpu" for rank in range(4)])

    def make(value):
        made = sharded_tensor.empty(spec, 13, 6)
        for shard in made.local_shards():
            first, count = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
            shard.tensor.copy_(full()[first:first + count] * value)
        return made
    dcp.save({"s": make(1)}, storage_writer=hf.StorageWriter(job, 0))
    found = {"s": make(0)}
    dcp.load(found, storage_reader=hf.StorageReader(job))
    for shard in found["s"].local_shards():
        first, count = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
        assert torch.equal(shard.tensor, full()[first:first + count])
    found = {"s": torch.zeros(13, 6)}
    dcp.load(found, storage_reader=hf.StorageReader(job))
    assert torch.equal(found["s"], full())


def several_shards_of_a_rank(job):
    """Blocks are assigned to the ranks in turn. Also tests complex numbers."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
    blocks = [ShardMetadata([row, column], [min(3, 13 - row), 2], f"rank:{(row + column) % 4}/cpu")
              for row in range(0, 13, 3) for column in (0, 2, 4)]

    def make(zero, dtype):
        made = sharded_tensor.empty(EnumerableShardingSpec(blocks), 13, 6, dtype=dtype)
        for shard in made.local_shards():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            part = full()[row:row + rows, column:column + columns]
            shard.tensor.copy_(part * (0 if zero else 1))
        assert len(made.local_shards()) > 1
        return made

    kinds = {"s": torch.float32, "c": torch.complex128}
    dcp.save({name: make(False, dtype) for name, dtype in kinds.items()},
             storage_writer=hf.StorageWriter(job, 0))
    found = {name: make(True, dtype) for name, dtype in kinds.items()}
    dcp.load(found, storage_reader=hf.StorageReader(job))
    for name, dtype in kinds.items():
        for mine, same in zip(found[name].local_shards(), make(False, dtype).local_shards()):
            assert torch.equal(mine.tensor, same.tensor)
    found = {name: torch.zeros(13, 6, dtype=dtype) for name, dtype in kinds.items()}
    dcp.load(found, storage_reader=hf.StorageReader(job))
    for name, dtype in kinds.items():
        assert torch.equal(found[name], full().to(dtype))


def older_fsdp(job):
    """FullyShardedDataParallel, through its DTensors."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel

    def build(seed):
        model = FullyShardedDataParallel(training.Model(seed), use_orig_params=True,
                                         device_mesh=init_device_mesh("cpu", (4,)),
                                         device_id=torch.device("cpu"))
        optim = torch.optim.AdamW(model.parameters(), lr=0.1)
        model(torch.arange(6).reshape(2, 3)).sum().backward()
        optim.step()
        return model, optim, dict(zip(("model", "optim"), get_state_dict(model, optim)))
    model, _, state = build(1)
    dcp.save(state, storage_writer=hf.StorageWriter(job, 0))
    other, optim, state = build(2)
    dcp.load(state, storage_reader=hf.StorageReader(job))
    set_state_dict(other, optim, model_state_dict=state["model"], optim_state_dict=state["optim"])
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def asynchronously(job):
    """async_save in a thread, and with torch's stagers."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    stager = DefaultStager(StagingOptions(False, False, True, False))
    for step, options in enumerate(({}, {"async_stager": stager})):
        state = {"w": full() + step}
        answer = dcp.async_save(state, storage_writer=hf.StorageWriter(job, step), **options)
        if hasattr(answer, "staging_completion"):
            answer.staging_completion.result()
            answer = answer.upload_completion
        state["w"].zero_()
        answer.result()
        found = {"w": torch.zeros(13, 6)}
        dcp.load(found, storage_reader=hf.StorageReader(job))
        assert torch.equal(found["w"], full() + step)
    stager.close()


def all_cases(job):
    for case in (other_placements, own_names, one_fails, in_groups, sharded_tensors,
                 several_shards_of_a_rank, older_fsdp, asynchronously):
        case(f"{job}-{case.__name__}")
        dist.barrier()


def test_four_ranks(cluster, job, tmp_path):
    run(4, all_cases, job, timeout=240)
    # An export also assembles several shards of a rank.
    exported = cluster.cli("export", f"{job}-several_shards_of_a_rank", "--format", "safetensors",
                           "--to", str(tmp_path / "out"), timeout=60)
    assert exported.returncode == 0, exported.stderr
    found = safetensors.torch.load_file(*tmp_path.glob("out/*.safetensors"))
    assert torch.equal(found["s"], full())
    assert torch.equal(found["c"], torch.view_as_real(full().to(torch.complex128)))


def in_another_process(job):
    """Saves in torch's background process, loads, and saves again."""
    found = {"w": torch.zeros(13, 6)}
    for step in (1, 2):
        state = {"w": full() + step}
        answer = dcp.async_save(state, storage_writer=hf.StorageWriter(job, step),
                                async_checkpointer_type=AsyncCheckpointerType.PROCESS)
        state["w"].zero_()
        answer.result()
        dcp.load(found, storage_reader=hf.StorageReader(job))
        assert torch.equal(found["w"], full() + step)


def test_saves_in_another_process(cluster, job):
    environment = {"MASTER_ADDR": "127.0.0.1"}
    run(2, in_another_process, job, environment=environment, timeout=240)
