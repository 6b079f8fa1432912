"""Tests of holdfast.torch in one process."""

import collections
import copy
import gc
import random
import sys

import holdfast
import holdfast.torch as hf
import numpy
import pytest
import torch
from torch import nn


def make(seed=0, **sizes):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 4))
    optim = torch.optim.AdamW(model.parameters(), lr=0.01)
    sched = torch.optim.lr_scheduler.MultiStepLR(optim, [3, 6, 9])
    return {"model": model, "optim": optim, "sched": sched}


def train(state, step):
    x, y = torch.randn(32, 8), torch.randn(32, 4) + random.random() + numpy.random.rand()
    loss = ((state["model"](x) - y) ** 2).mean()
    state["optim"].zero_grad()
    loss.backward()
    state["optim"].step()
    state["sched"].step()
    return loss.item()


def flat(value, prefix=""):
    """All tensors and values in a state: name → bytes or value."""
    if isinstance(value, torch.Tensor):
        flat_bytes = value.detach().contiguous().reshape(-1).view(torch.uint8)
        return {prefix: (value.dtype, tuple(value.shape), flat_bytes.numpy().tobytes())}
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return {prefix: repr(value)}
    return {k: v for key, item in items for k, v in flat(item, f"{prefix}/{key}").items()}


def everything(state):
    return {k: v for name, thing in state.items()
            for k, v in flat(thing.state_dict(), name).items()}


def seed_all():
    random.seed(1), numpy.random.seed(2), torch.manual_seed(3)


def test_a_restored_run_equals_an_uninterrupted_one(cluster, job):
    seed_all()
    state = make()
    with hf.Checkpointer(job, state) as ckpt:
        assert ckpt.restore() == 0 and ckpt.restored is None
        # The restore has changed nothing.
        assert not state["optim"].state and state["optim"].param_groups[0]["lr"] == 0.01
        for step in range(5):
            train(state, step)
            assert ckpt.save(step, wait_for_slot=10)
        ckpt.wait(4)
    losses = [train(state, step) for step in range(5, 12)]

    seed_all()
    again = make(seed=9)
    with hf.Checkpointer(job, again) as ckpt:
        assert ckpt.restore() == 5
        assert ckpt.restored == (1, 4)
        assert [train(again, step) for step in range(5, 12)] == losses
    assert everything(again) == everything(state)


def test_state_of_an_optimizer_that_has_none_yet(cluster, job):
    state = make()
    before = everything(state)
    with hf.Checkpointer(job, state) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    assert everything(state) == before
    again = make(seed=5)
    with hf.Checkpointer(job, again) as ckpt:
        assert ckpt.restore() == 1
        assert everything(again) == before


def test_parameters_without_gradients_have_no_state(cluster, job):
    def build():
        model = nn.ModuleDict({"used": nn.Linear(4, 4), "unused": nn.Linear(4, 4)})
        return {"model": model, "optim": torch.optim.Adam(model.parameters())}

    state = build()
    with hf.Checkpointer(job, state) as ckpt:
        for step in range(3):
            state["model"]["used"](torch.ones(2, 4)).sum().backward()
            state["optim"].step()
            ckpt.save(step, wait_for_slot=10)
        ckpt.wait(2)
    again = build()
    with hf.Checkpointer(job, again) as ckpt:
        assert ckpt.restore() == 3
    assert everything(again) == everything(state)
    assert len(again["optim"].state) == 2


class Strange(nn.Module):
    """Tensors of every kind."""

    def __init__(self, fill):
        super().__init__()
        kinds = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32,
                 torch.uint32, torch.int64, torch.uint64, torch.float16, torch.bfloat16,
                 torch.float32, torch.float64, torch.complex64, torch.complex128, torch.complex32,
                 torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
                 torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
        for kind in kinds:
            size = 24 * torch.empty(0, dtype=kind).element_size()
            bits = torch.arange(size, dtype=torch.uint8) * (1 if fill else 0)
            if kind is torch.bool:
                bits %= 2
            name = "of_" + str(kind).removeprefix("torch.")
            setattr(self, name, nn.Parameter(bits.view(kind).reshape(4, 6), requires_grad=False))
        scale = 1.0 if fill else 0.0
        self.scalar = nn.Parameter(torch.tensor(7.0 * scale))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        base = torch.arange(12.0).reshape(3, 4) * scale
        self.transposed = nn.Parameter(base.t())
        storage = torch.arange(20.0) * scale
        self.whole, self.tail = nn.Parameter(storage), nn.Parameter(storage[5:])
        self.channels_last = nn.Parameter(
            torch.arange(48.0).mul(scale).reshape(1, 3, 4, 4).to(memory_format=torch.channels_last))
        self.register_buffer("expanded", (torch.ones(3, 1) * scale).expand(3, 5))
        self.register_parameter("ünï 'quoted' \\ / \n", nn.Parameter(torch.ones(2) * scale))
        self.none = None


def test_every_kind_of_tensor(cluster, job):
    first, second = Strange(True), Strange(False)
    assert everything({"m": first}) != everything({"m": second})
    with hf.Checkpointer(job, {"m": first}) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    with hf.Checkpointer(job, {"m": second}) as ckpt:
        assert ckpt.restore() == 1
    assert everything({"m": first}) == everything({"m": second})
    # Non-contiguous and shared tensors stay so.
    assert not second.transposed.is_contiguous()
    assert second.tail.data_ptr() == second.whole.data_ptr() + 20


def test_tied_weights_are_saved_once_and_tied_again(cluster, job):
    def build(fill):
        model = nn.ModuleDict({"wte": nn.Embedding(100, 64),
                               "head": nn.Linear(64, 100, bias=False)})
        model["head"].weight = model["wte"].weight
        nn.init.constant_(model["wte"].weight, fill)
        return {"model": model}

    with hf.Checkpointer(job, build(3.0)) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
        assert ckpt.stats()["bytes_copied"] < 2 * 100 * 64 * 4
    state = build(0.0)
    with hf.Checkpointer(job, state) as ckpt:
        ckpt.restore()
    assert (state["model"]["wte"].weight == 3.0).all()
    assert state["model"]["wte"].weight is state["model"]["head"].weight


def test_values_that_cannot_be_saved_are_named(cluster, job):
    with pytest.raises(TypeError, match=r"state\['x'\] is a int"):
        hf.Checkpointer(job, {"x": 5})
    with pytest.raises(ValueError, match="no dots"):
        hf.Checkpointer(job, {"a.b": nn.Linear(1, 1)})
    for state, pattern in [
            ({"m": nn.Linear(2, 2, device="meta")}, "'m.weight' is on the meta device"),
            ({"d": {"x": torch.eye(3).to_sparse()}}, "'d.x' is a Tensor of layout"),
            ({"d": {"x\x1f1": torch.ones(1)}}, "has no unit separator"),
            ({"d": {"x": {"y": object()}}}, "'d.x.y' is a builtins.object.*allow_pickle")]:
        with pytest.raises((holdfast.HoldfastError, hf.UnsupportedValueError), match=pattern):
            hf.Checkpointer(job, state).save(0)


class Custom:
    def __init__(self):
        self.state = {}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


class Poison:
    def __reduce__(self):
        return (print, ("this ran",))


def test_values_are_restored_exactly_and_no_pickle_is_run(cluster, job, capsys):
    loader = Custom()
    loader.state = {
        "t": (1, 2.5, None, True, "x"), 3: [float("nan"), float("inf"), -0.0], "s": {1, 2},
        "c": collections.Counter({4: 2}), "o": collections.OrderedDict(a=1, b=2), "b": b"\0\xff",
        "n": numpy.arange(6.0).reshape(2, 3), "n0": numpy.int64(5), "big": torch.rand(300, 100),
        "small": torch.rand(3).to(torch.bfloat16), "d": torch.float16, "z": 1 + 2j, "$": {"$": 1},
        "dev": torch.device("cpu"), "deep": {"a": [{"b": (1, [2])}]}}
    expected = copy.deepcopy(loader.state)
    with hf.Checkpointer(job, {"loader": loader}) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
        loader.state = {**loader.state, "p": Poison()}
        with pytest.raises(hf.UnsupportedValueError, match="'loader.p' is a .*Poison"):
            ckpt.save(1)
    again = Custom()
    with hf.Checkpointer(job, {"loader": again}) as ckpt:
        assert ckpt.restore() == 1
    assert flat(again.state) == flat(expected)
    assert {type(again.state[k]) for k in "tcon"} == {type(expected[k]) for k in "tcon"}

    loader.state = {"p": Poison()}
    with hf.Checkpointer(job, {"loader": loader}, allow_pickle=True) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    with hf.Checkpointer(job, {"loader": Custom()}) as ckpt:
        with pytest.raises(hf.UnsupportedValueError, match="'loader.p' was saved by pickling"):
            ckpt.restore()
    assert "this ran" not in capsys.readouterr().out


def test_values_keep_what_their_types_need(cluster, job):
    loader = Custom()
    loader.state = {
        "window": collections.deque([1.0, 2.0], maxlen=2),
        "counts": collections.Counter(a=numpy.int64(3), b=float("inf")),
        "seen": collections.defaultdict(list, {"x": [1]}), "huge": -7 ** 10000,
        "column": torch.ones(1, 5)[:, 0], "conjugate": torch.tensor([1 + 2j]).conj()}
    expected = copy.deepcopy(loader.state)
    with hf.Checkpointer(job, {"loader": loader}) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    again = Custom()
    with hf.Checkpointer(job, {"loader": again}) as ckpt:
        assert ckpt.restore() == 1
    again.state["window"].append(3.0)
    assert list(again.state["window"]) == [2.0, 3.0]
    assert type(again.state["counts"]["a"]) is numpy.int64 and again.state["counts"]["b"] > 1e308
    assert again.state["seen"]["y"] == [] and again.state["seen"]["x"] == [1]
    assert again.state["huge"] == expected["huge"]
    for name in "column", "conjugate":
        assert torch.equal(again.state[name], expected[name].resolve_conj())


@pytest.mark.parametrize("value", [
    numpy.array([(1, 2.0)], dtype=[("step", "i4"), ("loss", "f8")]),
    numpy.zeros(1, dtype=[("step", "i4")])[0], torch.eye(2).to_sparse()])
def test_values_that_would_come_back_as_others_are_refused(cluster, job, value):
    loader = Custom()
    loader.state = {"v": value}
    with hf.Checkpointer(job, {"loader": loader}) as ckpt:
        with pytest.raises(hf.UnsupportedValueError, match="'loader.v' is a .*allow_pickle"):
            ckpt.save(0)


def test_lists_get_their_saved_length(cluster, job):
    log = {"history": [{"step": 0}], "pairs": [[0, 0.5]], "w": torch.ones(2)}
    with hf.Checkpointer(job, {"log": log}) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
        log["history"].append({"step": 1})
        log["pairs"].append([1, float("nan")])
        assert ckpt.restore() == 1
        assert log["history"] == [{"step": 0}] and log["pairs"] == [[0, 0.5]]
    state = {"log": {"pairs": [], "w": torch.zeros(2)}}
    with hf.Checkpointer(job, state) as ckpt:
        assert ckpt.restore() == 1
    assert state["log"]["pairs"] == [[0, 0.5]] and state["log"]["history"] == [{"step": 0}]


def test_no_empty_object_gets_into_the_state_instead_of_a_tensor(cluster, job):
    tree = {"n": 1, "pairs": [[torch.ones(1), 1], [torch.ones(1), 2]], "new": [torch.ones(1)]}
    with hf.Checkpointer(job, {"tree": tree}) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    state = {"tree": {"n": 0, "pairs": [[torch.zeros(1), 0]]}}
    with hf.Checkpointer(job, state) as ckpt:
        assert ckpt.restore(strict=False) == 1
    assert flat(state) == flat({"tree": {"n": 1, "pairs": [[torch.ones(1), 1]]}})


def test_all_errors_about_a_state_are_those_of_holdfast(cluster, job):
    for state in {"x": 5}, {"a.b": nn.Linear(1, 1)}, {"d": {"x": object()}}:
        with pytest.raises(holdfast.HoldfastError):
            hf.Checkpointer(job, state).save(0)


def replace_storage(state):
    state["model"].weight.data = torch.full((64, 64), 5.0)


def replace_parameter(state):
    state["model"].bias = nn.Parameter(torch.full((64,), 6.0))


def replace_entry(state):
    state["ema"]["w"] = torch.full((64, 64), 7.0)
    state["ema"]["n"] = 3


def replace_optimizer_state(state):
    optim = state["optim"]
    optim.state[state["model"].weight]["exp_avg"] = torch.full((64, 64), 8.0)


def replace_optimizer_storage(state):
    optim = state["optim"]
    optim.state[state["model"].weight]["exp_avg"].data = torch.full((64, 64), 9.0)


def set_storage(state):
    state["ema"]["w"].set_(torch.full((64, 64), 10.0))


def grow_storage(state):
    # The storage moves, and the tensor then has its previous size.
    state["ema"]["w"].resize_(1 << 20).resize_(64, 64).fill_(11.0)


def swap_tensors(state):
    torch.utils.swap_tensors(state["ema"]["w"], torch.full((64, 64), 12.0))


def transpose(state):
    # Another tensor with the same shape and address.
    state["ema"]["w"].copy_(torch.arange(4096.0).reshape(64, 64))
    state["ema"]["w"] = state["ema"]["w"].t()


def transpose_in_place(state):
    state["ema"]["w"].copy_(torch.arange(4096.0).reshape(64, 64)).t_()


@pytest.mark.parametrize("change", [replace_storage, replace_parameter, replace_entry,
                                    replace_optimizer_state, replace_optimizer_storage,
                                    set_storage, grow_storage, swap_tensors, transpose,
                                    transpose_in_place])
def test_replaced_tensors_are_described_again(cluster, job, change):
    def build():
        model = nn.Linear(64, 64)
        return {"model": model, "optim": torch.optim.Adam([model.weight]),
                "ema": {"w": torch.zeros(64, 64), "n": 0}}

    state = build()
    state["model"].weight.grad = torch.ones(64, 64)
    state["optim"].step()
    with hf.Checkpointer(job, state) as ckpt:
        ckpt.save(0)
        ckpt.guard()
        change(state)
        ckpt.save(1, wait_for_slot=10)
        ckpt.wait(1)
    again = build()
    with hf.Checkpointer(job, again) as ckpt:
        assert ckpt.restore() == 2
    assert flat(again["ema"]) == flat(state["ema"])
    assert everything({k: again[k] for k in ("model", "optim")}) == \
        everything({k: state[k] for k in ("model", "optim")})


@pytest.mark.parametrize("header", [0, 64])
def test_a_tensor_may_override_data_ptr(header):
    class Odd(torch.Tensor):
        def data_ptr(self):
            return super().data_ptr() + header

    watch = holdfast._native.Watch()
    tensor = torch.zeros(4).as_subclass(Odd)
    watch.add_address(tensor)
    assert watch.holds()
    tensor.data = torch.zeros(4)
    assert not watch.holds()


def as_other_values():
    return hf.values.dumps(hf.values.encode(hf.random_state.capture(), "random"))


def test_generators_are_encoded_as_other_values(monkeypatch):
    for _ in range(2):
        assert hf.random_state.capture_json() == as_other_values()
        random.gauss(0, 1), numpy.random.randn(), torch.rand(3)  # both generators buffer a second number
    monkeypatch.setattr(random, "getstate", random.Random(7).getstate)
    assert hf.random_state.capture_json() == as_other_values()
    monkeypatch.setattr(random, "getstate", lambda: random.Random(8).getstate())
    assert hf.random_state.capture_json() == as_other_values()
    monkeypatch.delitem(sys.modules, "numpy")
    assert b"numpy" not in hf.random_state.capture_json() == as_other_values()


@pytest.mark.parametrize("draw", [
    random.random, lambda: random.gauss(0, 1), lambda: random.seed(5), lambda: random.setstate(random.getstate()),
    numpy.random.rand, numpy.random.randn, lambda: numpy.random.seed(5),
    lambda: torch.rand(1), lambda: torch.randn(16), lambda: torch.manual_seed(5)])
def test_each_draw_from_a_generator_is_captured(draw):
    hf.random_state.capture_json()
    for count in 1, 1, 1, 700:  # Python's and NumPy's generators renew all words after 624
        for _ in range(count):
            draw()
        assert hf.random_state.capture_json() == as_other_values()


def test_values_next_to_tensors_are_those_of_the_save(cluster, job):
    def tree(*seen):
        return {"w": torch.ones(4), "n": len(seen), "seen": list(seen), "last": seen[-1:],
                "in": ({"t": torch.zeros(2)},),
                "odd": collections.OrderedDict({1: "x", "t": torch.ones(2)})}

    state = {"tree": tree()}
    with hf.Checkpointer(job, state) as ckpt:
        for step in range(4):
            ckpt.save(step, wait_for_slot=10)
            ckpt.wait(step)
            saves = ckpt.stats()["saves"]
            if step < 3:
                state["tree"]["n"] += 1
                state["tree"]["seen"].append(f"step {step}")
                state["tree"]["last"] = (f"step {step}",)
        assert saves == 4  # the tensors are unchanged: nothing was described again
    again = {"tree": tree()}
    with hf.Checkpointer(job, again) as ckpt:
        assert ckpt.restore() == 4
        assert flat(again["tree"]) == flat(state["tree"]) != flat(tree())
        ckpt.save(4)
        again["tree"]["v"] = again["tree"].pop("w")  # as many entries as before, as many tensors
        again["tree"]["in"][0]["t"].fill_(5)
        ckpt.save(5, wait_for_slot=10)
        ckpt.wait(5)
    last = {"tree": {**tree(), "v": torch.zeros(4)}}
    del last["tree"]["w"]
    with hf.Checkpointer(job, last) as ckpt:
        assert ckpt.restore() == 6
    assert flat(last["tree"]) == flat(again["tree"])


class Settings(dict):
    """A container whose type only a pickle restores."""


def test_tensors_within_values_are_restored_with_a_pickle(cluster, job):
    def tree(value):
        return {"w": torch.ones(4), "settings": Settings(value=value),
                "pair": (torch.full((2,), float(value)), value)}

    with hf.Checkpointer(job, {"tree": tree(1)}, allow_pickle=True) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    state = {"tree": tree(0)}
    with hf.Checkpointer(job, state, allow_pickle=True) as ckpt:
        assert ckpt.restore() == 1
    assert flat(state["tree"]) == flat(tree(1))


def test_a_restore_disables_garbage_collection_temporarily(cluster, job):
    class Loader(Custom):
        def load_state_dict(self, state):
            self.collects = gc.isenabled()
            if state.get("broken"):
                raise RuntimeError("broken")

    loader = Loader()
    for step, (state, collects) in enumerate([({"a": 1}, True), ({"a": 1}, False),
                                              ({"broken": True}, True)]):
        loader.state = state
        with hf.Checkpointer(job, {"loader": loader}) as ckpt:
            ckpt.save(step)
            ckpt.wait(step)
        (gc.enable if collects else gc.disable)()
        try:
            with hf.Checkpointer(job, {"loader": loader}) as ckpt:
                if "broken" in state:
                    with pytest.raises(RuntimeError, match="broken"):
                        ckpt.restore()
                else:
                    assert ckpt.restore() == step + 1
            assert gc.isenabled() == collects and not loader.collects
        finally:
            gc.enable()


def test_differences_are_named_with_a_remedy(cluster, job):
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 3)})
    with hf.Checkpointer(job, {"model": model}) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    other = nn.ModuleDict({"a": nn.Linear(2, 2), "c": nn.Linear(2, 3)})
    before = everything({"m": other})
    with hf.Checkpointer(job, {"model": other}) as ckpt:
        with pytest.raises(hf.StateMismatchError) as caught:
            ckpt.restore()
        assert any("'model.b.weight'" in line for line in caught.value.differences)
        assert any("'model.c.weight'" in line for line in caught.value.differences)
        assert everything({"m": other}) == before
        assert ckpt.restore(dry_run=True) == 1
        assert everything({"m": other}) == before
        assert ckpt.restore(strict=False) == 1
        assert everything({"m": other}) != before


@pytest.mark.parametrize("other, differs", [
    (nn.Linear(2, 3).double(), "elements of type F64, the version F32: convert the state"),
    (nn.Linear(3, 3), r"shape \[3, 3\], the version has \[3, 2\]: build the state"),
])
def test_a_tensor_of_another_type_or_shape_keeps_its_values(cluster, job, other, differs):
    with hf.Checkpointer(job, {"model": nn.Linear(2, 3)}) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    weight = other.weight.detach().clone()
    with hf.Checkpointer(job, {"model": other}) as ckpt:
        with pytest.raises(hf.StateMismatchError, match=f"'model.weight' has {differs}.*strict=False"):
            ckpt.restore()
        assert ckpt.restore(strict=False) == 1
    assert torch.equal(other.weight, weight)


def test_ten_thousand_tensors(cluster, job):
    model = nn.ParameterList([nn.Parameter(torch.full((4,), float(i))) for i in range(3334)])
    state = {"model": model, "optim": torch.optim.Adam(model.parameters())}
    for parameter in model:
        parameter.grad = torch.ones(4)
    state["optim"].step()
    with hf.Checkpointer(job, state) as ckpt:
        for step in range(3):
            ckpt.save(step, wait_for_slot=10)
            ckpt.guard()
        ckpt.wait(2)
    expected = everything(state)
    with torch.no_grad():
        for parameter in model:
            parameter.zero_()
    with hf.Checkpointer(job, state) as ckpt:
        assert ckpt.restore() == 3
    assert everything(state) == expected


def test_one_tensor_twice_in_a_state_dict(cluster, job):
    class Twice:
        def __init__(self, seed):
            torch.manual_seed(seed)
            self.state = torch.rand(200, 200)

        def state_dict(self):
            return {"a": self.state, "b": {"c": self.state}, "d": self.state + 1}

        def load_state_dict(self, state):
            self.loaded = state
    with hf.Checkpointer(job, {"twice": Twice(1)}) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    there, expected = Twice(2), Twice(1).state_dict()
    with hf.Checkpointer(job, {"twice": there}) as ckpt:
        assert ckpt.restore() == 1
    assert torch.equal(there.loaded["a"], expected["a"])
    assert torch.equal(there.loaded["b"]["c"], expected["a"])
    assert torch.equal(there.loaded["d"], expected["d"])
