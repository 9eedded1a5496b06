"""Weights streamed between Hugging Face directories and checkpoints: bit by bit, in little memory."""

import ctypes
import hashlib
import importlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron_ranks import QWEN
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from transformers import AutoModelForCausalLM

from rlcore import CHECKSUMS_FILE, CheckpointError, ModelSpec, OptimizerSettings, Part, SavedWeights, checksum
from rlcore_cli.weights_source import of_model
from rlcore_megatron.convert import WEIGHTS, to_dist, to_hf
from rlcore_megatron.fields import split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import hf_tensors
from rlcore_megatron.shares import share
from rlcore_testing.checkpoints import tensors_of
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_experts, make_qwen3

MB = 1 << 20
M_MMAP_THRESHOLD = -3

GLM = Part(name="glm4_moe", factory="rlcore_glm.moe:GlmMoeBridge")

CONVERSIONS: dict[str, Callable[..., Any]] = {"to_hf": to_hf, "to_dist": to_dist}


def _unseen(done: int, total: int) -> None:
    """No progress is looked at."""


def _in_one_process(rank: int, world: int, port: int, calls: list[tuple[str, Any]]) -> list[Any]:
    """Conversions one after another; each gives its progress and the growth of the peak memory, in bytes."""
    found = []
    libc = ctypes.CDLL(None)  # what is freed goes back at once: the tensors count, not what malloc keeps
    libc.mallopt(M_MMAP_THRESHOLD, MB)
    QWEN.load()
    importlib.import_module("mbridge.models.qwen3")  # what imports take is no matter of the model's size
    importlib.import_module("transformers.models.qwen3.modeling_qwen3")
    for name, arguments in calls:
        steps: list[tuple[int, int]] = []

        def advance(done: int, total: int, steps: list[tuple[int, int]] = steps) -> None:
            steps.append((done, total))

        with _peak() as peak:
            CONVERSIONS[name](*arguments[:2], advance, *arguments[2:])
        found.append((steps, peak[0]))
    return found


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Growth of the anonymous memory of this process, at its highest: pages of files do not count."""
    peak, done = [0], threading.Event()
    begin = _anonymous()

    def watch() -> None:
        while not done.wait(0.001):
            peak[0] = max(peak[0], _anonymous() - begin)

    thread = threading.Thread(target=watch)
    thread.start()
    yield peak
    done.set()
    thread.join()


def _anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024


def _source(folder: Path) -> SavedWeights:
    return SavedWeights(spec=of_model(folder, QWEN), folder=folder / WEIGHTS)


@pytest.mark.parametrize("tied", [True, False])
def test_there_and_back_is_the_same_to_the_last_bit(tmp_path: Path, tied: bool) -> None:
    model, middle, out = make_qwen3(tmp_path / "m", tie_word_embeddings=tied), tmp_path / "d", tmp_path / "h"
    calls = [("to_dist", (of_model(model, QWEN), middle))]
    [(steps, _)] = run_ranks(_in_one_process, 1, calls)[0]
    run_ranks(_in_one_process, 1, [("to_hf", (_source(middle), out, 20_000))])
    assert sum(done for done, _ in steps) == steps[-1][1]

    before = tensors_of(model)
    torch.testing.assert_close(tensors_of(out), before, rtol=0, atol=0)
    assert AutoModelForCausalLM.from_pretrained(out).num_parameters() == sum(
        t.numel() for t in before.values()
    )
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == before.keys()
    report = json.loads((out / CHECKSUMS_FILE).read_text())
    assert report["tensors"] == {name: checksum(tensor) for name, tensor in before.items()}
    for name, file in report["files"].items():
        content = (out / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file["bytes"], file["sha256"])


@pytest.mark.full
def test_memory_is_that_of_a_tensor_however_large_the_model(tmp_path: Path) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "head_dim": 128}
    model, middle, out = make_qwen3(tmp_path / "m", **sizes), tmp_path / "d", tmp_path / "h"
    whole = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    largest = 2 * 2048 * 512 * 4
    assert whole > 15 * largest
    tiny, small, again = make_qwen3(tmp_path / "tiny"), tmp_path / "small", tmp_path / "again"
    # a tiny model goes first: what a process takes once is no matter of the model's size
    calls: list[tuple[str, Any]] = [("to_dist", (of_model(tiny, QWEN), small))]
    calls.append(("to_dist", (of_model(model, QWEN), middle)))
    [_, (_, there)] = run_ranks(_in_one_process, 1, calls)[0]
    calls = [("to_hf", (SavedWeights(spec=of_model(tiny, QWEN), folder=small / WEIGHTS), again, 16 * MB))]
    calls.append(("to_hf", (_source(middle), out, 16 * MB)))
    [_, (_, back)] = run_ranks(_in_one_process, 1, calls)[0]
    assert len(list(out.glob("*.safetensors"))) > 6
    for growth in (there, back):
        assert growth < 4 * largest, "a few copies of one tensor"
        assert growth < whole / 2


def _staged(rank: int, world: int, port: int, path: str, fields: dict[str, Any]) -> tuple[int, int]:
    """Growth of the peak memory while a role is staged, and the bytes that go into its checkpoint."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MB)
    parallel.start(rank, world, "127.0.0.1", port)
    role = Role(ModelSpec(path=path, bridge=QWEN, fields=fields), OptimizerSettings(lr=1e-3))
    with _peak() as peak:
        role.stage()
    weights = sum(tensor.nbytes for _, tensor in hf_tensors(role.built))
    parallel.stop()
    return peak[0], 4 * weights


def test_a_checkpoint_takes_one_copy_of_what_it_holds(tmp_path: Path) -> None:
    model = str(make_qwen3(tmp_path / "m", hidden_size=512, intermediate_size=2048, head_dim=128))
    [(growth, whole)] = run_ranks(_staged, 1, model, {})
    assert growth < 1.2 * whole
    buckets = {"overlap_grad_reduce": True, "bucket_size": 1_500_000}
    (growth, _), (other, _) = run_ranks(_staged, 2, model, buckets)
    assert growth < 1.4 * whole, "a gathered state beside what is kept"
    assert other < 0.6 * whole, "the other rank writes nothing"


@pytest.mark.full
@pytest.mark.timeout(900)  # of seven more processes that import everything
@pytest.mark.filterwarnings("ignore")  # megatron warns of itself, and it runs in this process here
def test_ranks_share_the_work_and_give_the_same_bytes(tmp_path: Path) -> None:
    model = make_experts(tmp_path / "m", num_hidden_layers=3)
    one, two = tmp_path / "1", tmp_path / "2"
    steps: list[tuple[int, int]] = []
    spec = of_model(model, GLM)

    def source(folder: Path) -> SavedWeights:
        return SavedWeights(spec=spec, folder=folder / "d" / WEIGHTS)

    calls = [("to_dist", (spec, one / "d")), ("to_hf", (source(one), one / "h", 40_000))]
    run_ranks(_in_one_process, 1, calls)
    dist = to_dist(spec, two / "d", lambda *step: steps.append(step), 2)
    hf = to_hf(source(two), two / "h", lambda *step: steps.append(step), 40_000, 3)
    assert sum(done for done, _ in steps) == steps[0][1] + steps[-1][1] > 0

    assert {name[:4] for name in dist.files} == {"__0_", "__1_"}
    sizes = [file["bytes"] for file in dist.files.values()]
    assert max(sizes) < 0.7 * sum(sizes)
    assert dist.tensors == json.loads((one / "d" / CHECKSUMS_FILE).read_text())["tensors"]
    assert (two / "h" / CHECKSUMS_FILE).read_bytes() == (one / "h" / CHECKSUMS_FILE).read_bytes(), (
        "the digest of each file"
    )
    for file in (one / "h").iterdir():
        assert (two / "h" / file.name).read_bytes() == file.read_bytes()
    assert len(hf.files) > 3
    torch.testing.assert_close(tensors_of(two / "h"), tensors_of(model), rtol=0, atol=0)

    (two / "d" / WEIGHTS / "__1_0.distcp").unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        to_hf(source(two), two / "again", _unseen, 40_000, 2)
    assert not list(two.glob("again*"))


def _layers_in_pieces(rank: int, world: int, port: int, root: str, piece_bytes: int) -> dict[str, Any]:
    """The checksums of a checkpoint whose layers of experts are divided, and how many pieces one has."""
    model, out = Path(root) / "m", Path(root) / "pieces"
    report = to_dist(of_model(model, GLM), out, _unseen, max_piece_bytes=piece_bytes)
    to_hf(SavedWeights(spec=of_model(model, GLM), folder=out / WEIGHTS), Path(root) / "h", _unseen, 40_000)
    entries = FileSystemReader(str(out / WEIGHTS)).read_metadata().state_dict_metadata
    [experts] = [entry for name, entry in entries.items() if name.endswith("mlp.experts.linear_fc1.weight")]
    assert isinstance(experts, TensorStorageMetadata)
    return {"tensors": report.tensors, "pieces": [tuple(chunk.sizes)[-3] for chunk in experts.chunks]}


@pytest.mark.full
def test_a_layer_of_experts_is_never_whole_in_memory(tmp_path: Path) -> None:
    """It is written, and read, in pieces: the same values, for every layout."""
    model = make_experts(tmp_path / "m", n_routed_experts=6)
    matrix = 2 * 32 * 64 * 4
    [found] = run_ranks(_layers_in_pieces, 1, str(tmp_path), 4 * matrix + 100)
    assert found["pieces"] == [4, 2]
    run_ranks(_in_one_process, 1, [("to_dist", (of_model(model, GLM), tmp_path / "whole"))])
    assert found["tensors"] == json.loads((tmp_path / "whole" / CHECKSUMS_FILE).read_text())["tensors"]
    before = tensors_of(model)
    torch.testing.assert_close(tensors_of(tmp_path / "h"), before, rtol=0, atol=0)
    spec, cut = (
        _from_weights(model, GLM, tmp_path / "pieces", {"expert_tensor_parallel_size": 2}),
        tmp_path / "cut",
    )
    for held in run_ranks(_held, 2, spec, cut):
        assert all((held[name] == before[name].numpy()).all() for name in before)
    of_halves = SavedWeights(spec=of_model(model, GLM), folder=cut)
    run_ranks(_in_one_process, 1, [("to_hf", (of_halves, tmp_path / "whole again", 40_000))])
    torch.testing.assert_close(tensors_of(tmp_path / "whole again"), before, rtol=0, atol=0)


def test_shares_are_all_of_it_and_about_equal() -> None:
    sizes = [7, 1, 1, 5, 2, 2, 9, 1, 3, 3]
    shares = [share(list(range(10)), sizes, rank, 3) for rank in range(3)]
    assert [item for one in shares for item in one] == list(range(10))
    assert all(abs(sum(sizes[item] for item in one) - sum(sizes) / 3) <= max(sizes) for one in shares)


def _from_weights(model: Path, bridge: Part, weights: Path, megatron: dict[str, Any]) -> ModelSpec:
    """Of a directory without safetensors: the weights can have come from the checkpoint alone."""
    empty = weights.with_name("empty")
    empty.mkdir()
    shutil.copy(model / "config.json", empty)
    return ModelSpec(path=str(empty), bridge=bridge, fields=megatron, weights=str(weights / WEIGHTS))


def _held(rank: int, world: int, port: int, spec: ModelSpec, folder: Path | None = None) -> dict[str, Any]:
    """Every tensor of the model; `folder`: where to save it."""
    parallel.start(rank, world, "127.0.0.1", port, **split(spec.fields).layout)
    role = Role(spec, OptimizerSettings(lr=1e-3))
    found = {name: tensor.numpy().copy() for name, tensor in hf_tensors(role.built)}
    if folder is not None:
        role.save(folder)
    parallel.stop()
    return found


@pytest.mark.parametrize("field", ["tensor_model_parallel_size", "pipeline_model_parallel_size"])
def test_any_layout_starts_from_a_converted_checkpoint(tmp_path: Path, field: str) -> None:
    model, other = make_qwen3(tmp_path / "m"), tmp_path / "d"
    run_ranks(_in_one_process, 1, [("to_dist", (of_model(model, QWEN), other))])
    spec = _from_weights(model, QWEN, other, {field: 2})
    before = tensors_of(model)
    for found in run_ranks(_held, 2, spec):
        assert found.keys() == before.keys()
        assert all((found[name] == before[name].numpy()).all() for name in before)


def _refuses(rank: int, world: int, port: int, root: str) -> bool:
    model = make_qwen3(Path(root) / "m")
    good, bad, out = Path(root) / "d", Path(root) / "bad", Path(root) / "out"
    to_dist(of_model(model, QWEN), good, _unseen)
    make_qwen3(bad, intermediate_size=64)
    with pytest.raises(CheckpointError, match="is no checkpoint of this model"):
        to_hf(SavedWeights(spec=of_model(bad, QWEN), folder=good / WEIGHTS), out, _unseen)
    data = good / WEIGHTS / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="cannot be read"):
        to_hf(_source(good), out, _unseen)
    with pytest.raises(CheckpointError, match="exists already"):
        to_hf(_source(good), bad, _unseen)
    shutil.disk_usage = lambda path: SimpleNamespace(free=1000)  # type: ignore # a full disk
    with pytest.raises(CheckpointError, match=r"out: needs 0\.0\d+ GB, and .* has 1e-06 GB free"):
        to_dist(of_model(model, QWEN), out, _unseen)
    assert sorted(path.name for path in Path(root).iterdir()) == ["bad", "d", "m"]
    return True


def test_another_model_a_damaged_checkpoint_and_a_full_disk_leave_nothing(tmp_path: Path) -> None:
    assert run_ranks(_refuses, 1, str(tmp_path)) == [True]
