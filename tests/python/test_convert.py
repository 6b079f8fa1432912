"""`holdfast export` and `holdfast import` with the formats of torch and safetensors."""

import json
import os
import pickle
import subprocess
import sys

import holdfast.torch as hf
import pytest
import torch
import torch.distributed.checkpoint as dcp
import training
from holdfast.torch import foreign, mapped
from holdfast.torch.convert import main
from ranks import run
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def _python(monkeypatch):
    monkeypatch.setenv("HOLDFAST_PYTHON", sys.executable)


def ok(cluster, *arguments):
    result = cluster.cli(*map(str, arguments), "-o", "json", timeout=120)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def convert(capsys, *arguments):
    """Runs the converter as the command does, but in this process. Returns (result, messages)."""
    code = main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    assert (code == 0) == bool(output.out), output.err
    return json.loads(output.out or "null"), output.err


def export_dcp(cluster, job, folder):
    """Runs `export --format dcp` with the converter in this process. Returns `folder`/dcp."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 0\n'
                      f'cp -r "$4" {folder}/work && mkdir "$5" && touch "$5/.metadata"\n')
    python.chmod(0o755)
    ok(cluster, "export", job, "--format", "dcp", "--to", folder / "out", "--python", python)
    assert main(["to-dcp", str(folder / "work"), str(folder / "dcp")]) == 0
    return folder / "dcp"


def read_safetensors(path):
    file = mapped.MappedFile(path)
    metadata, places = mapped.read_header(file)
    return metadata, {name: file.tensor(*place) for name, place in places.items()}


def template(tensors):
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def save_both_ways(kind, job, folder):
    """Saves with a Checkpointer, and with torch's own writer. Returns all tensors."""
    from torch.distributed.checkpoint.state_dict import get_state_dict
    state = training.build(kind, seed=1)
    # Shards over one mesh dimension are equal along the other one, which only the caller knows.
    with hf.Checkpointer(job, dict(state, model=hf.replicated(state["model"]))) as ckpt:
        training.train(state, 0, kind)
        ckpt.save(0)
        ckpt.wait(0)
    model, optim = get_state_dict(state["model"], state["optim"])
    dcp.save({"model": model, "optim": optim, "extra": {"epoch": 4, "t": torch.arange(3)}},
             checkpoint_id=folder)
    return training.full_tensors(state)


@pytest.fixture(scope="module")
def saved(cluster, tmp_path_factory):
    """A state of four ranks, two-way tensor parallel and two-way sharded: (job, directory of torch's
    writer, all tensors)."""
    folder = str(tmp_path_factory.mktemp("torch") / "dcp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_SOCKET", cluster.socket())
        return "spread", folder, run(4, save_both_ways, "tp_fsdp", "spread", folder,
                                       timeout=240)[0]


def test_slices_of_four_ranks_are_assembled(cluster, saved, tmp_path):
    job, _, expected = saved
    answer = ok(cluster, "export", job, "--format", "safetensors", "--to", tmp_path / "st")
    metadata, found = read_safetensors(tmp_path / "st/model.safetensors")
    training.assert_same({name.replace("optim.state.", "optim."): value
                          for name, value in found.items()}, expected)
    assert metadata["format"] == "pt" and metadata["source"] == f"{job}/1-0"
    assert answer["tensors"] == len(expected) and answer["exported"]

    model = {name[6:]: value for name, value in expected.items() if name.startswith("model.")}
    ok(cluster, "export", job, "--format", "hf", "--to", tmp_path / "hf", "--max-shard-size",
       "40KB")
    index = json.loads((tmp_path / "hf/model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert sorted(os.listdir(tmp_path / "hf")) == [*files, "model.safetensors.index.json"]
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in model.values())
    found = {}
    for name in files:
        tensors = read_safetensors(tmp_path / "hf" / name)[1]
        assert all(index["weight_map"][key] == name for key in tensors)
        found |= tensors
    training.assert_same(found, model)

    ok(cluster, "export", job, "--format", "dcp", "--to", tmp_path / "dcp")
    assert sorted(os.listdir(tmp_path / "dcp"))[0] == ".metadata"
    state = training.build("plain", seed=2)  # restored by torch alone
    training.train(state, 0)
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    both = dict(zip(("model", "optim"), get_state_dict(state["model"], state["optim"])))
    dcp.load(both, checkpoint_id=tmp_path / "dcp")
    set_state_dict(state["model"], state["optim"], model_state_dict=both["model"],
                   optim_state_dict=both["optim"])
    training.assert_same(training.full_tensors(state), expected)


def test_other_libraries_read_it(cluster, job, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    with hf.Checkpointer(job, {"model": training.Model(1)}) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    ok(cluster, "export", job, "--format", "hf", "--to", tmp_path / "hf")
    found = safetensors.load_file(tmp_path / "hf/model-00001-of-00001.safetensors")
    training.assert_same(found, training.Model(1).state_dict())


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(9, 4)
        self.head = torch.nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight
        self.phase = torch.nn.Parameter(torch.randn(3, dtype=torch.complex128))


def test_tied_tensors_and_types_that_safetensors_lacks(cluster, job, tmp_path):
    model, extra = Tied(), {"epoch": 3, "note": "ä", "rates": [0.5, {"b": (1, 2)}]}
    with hf.Checkpointer(job, {"model": model, "extra": extra}) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    result = cluster.cli("export", job, "--format", "hf", "--to", str(tmp_path / "hf"))
    assert "'phase' is torch.complex128, for which safetensors has no type" in result.stderr
    metadata, found = read_safetensors(tmp_path / "hf/model-00001-of-00001.safetensors")
    assert sorted(found) == ["embed.weight", "phase"]
    assert json.loads(metadata["aliases"]) == {"head.weight": "embed.weight"}
    assert torch.equal(torch.view_as_complex(found["phase"]), model.phase)
    folder = export_dcp(cluster, job, tmp_path)
    found = {"model": template(model.state_dict()), "extra": {**extra, "epoch": 0, "note": ""}}
    dcp.load(found, checkpoint_id=folder)
    training.assert_same(found["model"], model.state_dict())
    assert found["extra"] == extra


class Loader:
    """Its large tensor is saved apart from its values."""

    def state_dict(self):
        return {"seen": ["x", torch.ones(40_000)], "history": [{"step": 1}]}

    def load_state_dict(self, state):
        pass


def test_lists_with_tensors_are_lists_for_torch(cluster, job, tmp_path):
    tree = {"n": 5, "plain": [1, "x"], "pair": (torch.ones(2), 7),
            "mixed": [torch.arange(3.0), {"t": torch.zeros(1), "n": 1}, [torch.ones(1), None]]}
    with hf.Checkpointer(job, {"tree": tree, "loader": Loader()}) as ckpt:
        ckpt.save(0)
        ckpt.wait(0)
    dcp_to_torch_save(export_dcp(cluster, job, tmp_path), tmp_path / "all.pt")
    everything = torch.load(tmp_path / "all.pt", weights_only=True)
    assert torch.equal(everything["loader"]["seen"][1], torch.ones(40_000))
    found = everything["tree"]
    assert found["n"] == 5 and found["plain"] == [1, "x"]
    assert torch.equal(found["pair"][0], torch.ones(2)) and found["pair"][1] == 7
    first, second, third = found["mixed"]
    assert torch.equal(first, torch.arange(3.0))
    assert torch.equal(second["t"], torch.zeros(1)) and second["n"] == 1
    assert torch.equal(third[0], torch.ones(1)) and third[1] is None


def test_versions_of_dcp_are_exported_unchanged(cluster, job, tmp_path):
    state = {"a": {"w": torch.rand(4, 4), "l": [torch.rand(2), {"n": 1}]}, "step": 7, "n": None,
             "e": torch.zeros(0, 3), "c": torch.rand(2, dtype=torch.complex128)}
    dcp.save(state, storage_writer=hf.StorageWriter(job, step=3))
    result = cluster.cli("export", job, "--format", "hf", "--to", str(tmp_path / "hf"))
    assert result.returncode == 1 and "--entry NAME, one of 'a'" in result.stderr
    folder = export_dcp(cluster, job, tmp_path)
    found = {"a": {"w": torch.zeros(4, 4), "l": [torch.zeros(2), {"n": 0}]}, "step": 0, "n": 1,
             "e": torch.zeros(0, 3), "c": torch.zeros(2, dtype=torch.complex128)}
    dcp.load(found, checkpoint_id=folder)
    assert repr(found) == repr(state)


# ------------------------------------------------------------------------------------------- import

def test_a_directory_of_torch_becomes_a_version(cluster, saved, job):
    _, folder, expected = saved
    answer = ok(cluster, "import", folder, "--job", job, "--step", 12)
    assert answer["version"] == "1-12" and answer["left_out"] == []
    state = training.build("plain", seed=2)
    extra = {"epoch": 0, "t": torch.zeros(3, dtype=torch.int64)}
    with hf.Checkpointer(job, {**state, "extra": extra}) as ckpt:
        assert ckpt.restore() == 13
    training.assert_same(training.full_tensors(state), expected)
    assert extra["epoch"] == 4 and extra["t"].tolist() == [0, 1, 2]
    found = {"model": template({name[6:]: value for name, value in expected.items()
                                if name.startswith("model.")}), "extra": {"epoch": 0}}
    dcp.load(found, storage_reader=hf.StorageReader(job))
    assert torch.equal(found["model"]["up.weight"], expected["model.up.weight"])
    assert found["extra"]["epoch"] == 4
    again = cluster.cli("import", folder, "--job", job)
    assert again.returncode == 1 and "exists already" in again.stderr


def import_share(folder, job):
    assert main(["import", folder, "--job", job, "--entry", "model"]) == 0


def test_several_ranks_share_an_import(cluster, job, tmp_path):
    model = training.Model(3)
    dcp.save(model.state_dict(), checkpoint_id=tmp_path)
    run(2, import_share, str(tmp_path), job, environment={"HOLDFAST_RUN_ID": "one"},
        timeout=240)
    shards = ok(cluster, "restore", job, "--to", tmp_path / "out")["shards"]
    assert len(shards) == 2 and min(shard["bytes"] for shard in shards) > 30_000
    restored = training.Model(4)
    with hf.Checkpointer(job, {"model": restored}) as ckpt:
        ckpt.restore()
    training.assert_same(restored.state_dict(), model.state_dict())


def test_entries_are_renamed_and_safetensors_are_read(cluster, job, tmp_path, capsys):
    model = training.Model(3)
    dcp.save({"app": {"net": model.state_dict()}, "other": 1}, checkpoint_id=tmp_path / "dcp")
    answer, error = convert(capsys, "import", tmp_path / "dcp", "--job", job, "--entry", "x=y")
    assert answer is None and "nothing under 'x'; it has app, other" in error
    convert(capsys, "import", tmp_path / "dcp", "--job", job, "--entry", "app.net=model")
    restored = training.Model(4)
    with hf.Checkpointer(job, {"model": restored}) as ckpt:
        ckpt.restore()
    training.assert_same(restored.state_dict(), model.state_dict())
    # Export in the format of Hugging Face, and import again.
    ok(cluster, "export", job, "--format", "hf", "--to", tmp_path / "hf")
    convert(capsys, "import", tmp_path / "hf", "--job", f"{job}-again", "--entry", "model")
    restored = training.Model(5)
    with hf.Checkpointer(f"{job}-again", {"model": restored}) as ckpt:
        ckpt.restore()
    training.assert_same(restored.state_dict(), model.state_dict())


class Command:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_nothing_in_a_checkpoint_runs(cluster, job, tmp_path, capsys):
    trace = tmp_path / "it-ran"
    dcp.save({"w": torch.ones(3)}, checkpoint_id=tmp_path / "dcp")
    metadata = foreign.load_metadata(tmp_path / "dcp/.metadata")
    metadata.planner_data = Command(trace)
    (tmp_path / "dcp/.metadata").write_bytes(pickle.dumps(metadata))
    answer, error = convert(capsys, "import", tmp_path / "dcp", "--job", job)
    assert answer is None and "names 'posix.system'" in error
    assert not trace.exists()
    # An object whose pickle has more than plain values is left out and reported.
    dcp.save({"w": torch.ones(3), "evil": Command(trace)}, checkpoint_id=tmp_path / "object")
    answer, _ = convert(capsys, "import", tmp_path / "object", "--job", job)
    assert answer["left_out"] == ["evil"] and answer["tensors"] == 1
    assert not trace.exists()
    # Neither is a pickle in the place of a tensor loaded.
    metadata = foreign.load_metadata(tmp_path / "object/.metadata")
    places = {index.fqn: index for index in metadata.storage_data}
    metadata.storage_data[places["w"]] = metadata.storage_data[places["evil"]]
    (tmp_path / "object/.metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(hf.HoldfastError, match="describe 'w' as a tensor"):
        foreign.read(tmp_path / "object").tensors["w"].pieces[0][2]()
    assert not trace.exists()
    pickle.loads(pickle.dumps(Command(trace)))  # the pickle would run
    assert trace.exists()


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", ".."])
def test_files_outside_of_the_checkpoint_are_not_read(tmp_path, path):
    dcp.save({"w": torch.ones(3)}, checkpoint_id=tmp_path)
    metadata = foreign.load_metadata(tmp_path / ".metadata")
    for info in metadata.storage_data.values():
        info.relative_path = path
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(hf.HoldfastError, match="outside"):
        foreign.read(tmp_path).tensors["w"].pieces[0][2]()


def test_damaged_checkpoints_are_named(tmp_path):
    dcp.save({"w": torch.ones(300)}, checkpoint_id=tmp_path)
    data, = tmp_path.glob("*.distcp")
    original = data.read_bytes()
    data.write_bytes(original[:200])
    with pytest.raises(hf.HoldfastError, match="cut off"):
        foreign.read(tmp_path).tensors["w"].pieces[0][2]()
    data.write_bytes(original[:30] + bytes(len(original) - 30))
    with pytest.raises(hf.HoldfastError, match="'w'.*damaged|describe 'w' as a tensor"):
        foreign.read(tmp_path).tensors["w"].pieces[0][2]()
    data.unlink()
    with pytest.raises(hf.HoldfastError, match="is incomplete"):
        foreign.read(tmp_path).tensors["w"].pieces[0][2]()
    (tmp_path / ".metadata").write_bytes(b"\x80\x04junk")
    with pytest.raises(hf.HoldfastError, match="cannot be read"):
        foreign.read(tmp_path)


def test_a_missing_interpreter_or_package_is_named(cluster, job, tmp_path):
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 77\n")
    bare.chmod(0o755)
    for python, words in (("/no/such/python", "no interpreter"), (str(bare), "pip install")):
        result = cluster.cli("import", str(tmp_path), "--job", job, "--python", python)
        assert result.returncode == 1 and words in result.stderr, result.stderr
