"""A role saved, loaded and continued: bit by bit on its layout, closely on others, never from a bad file."""

import os
import pickle
import random
import resource
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from megatron_ranks import QWEN, share_of
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from rlcore import CheckpointError, ModelSpec, OptimizerSettings, StepResult
from rlcore.checkpoint.folder import newest_complete, write_atomically
from rlcore_megatron.fields import split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.checkpoint.torch_dist import quiet
from rlcore_megatron.mcore.rng import set_seed
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import hf_tensors
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import VOCAB_SIZE, make_qwen3, policy_loss, random_batch

SETTINGS = OptimizerSettings(
    lr=1e-2, adam_eps=1e-4, lr_schedule="linear", warmup_steps=1, total_steps=6, weight_decay=0.1
)
TENSOR = {"tensor_model_parallel_size": 2}
PIPELINE = {"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Ett|L"}


def _start(
    rank: int, world: int, port: int, path: str, megatron: dict[str, Any], dtype: str = "fp32"
) -> Role:
    parallel.start(rank, world, "127.0.0.1", port, **split(megatron).layout)
    return Role(ModelSpec(path=path, bridge=QWEN, fields=megatron, dtype=dtype), SETTINGS)


def _train(role: Role, seed: int) -> StepResult:
    batch = random_batch(8, seed)
    return role.train(share_of(batch), policy_loss, temperature=1.0, tokens_per_rank=40)


def _continue(role: Role) -> Any:
    """What the next two steps give, and what the generators draw."""
    draws = (random.random(), float(np.random.rand()), float(torch.rand(())))  # the global one
    steps = [_train(role, seed) for seed in (10, 11)]
    weights = {name: tensor.float().numpy().copy() for name, tensor in hf_tensors(role.built)}
    return steps, weights, draws


def _saved(
    rank: int, world: int, port: int, path: str, folder: str, megatron: dict[str, Any], steps: int, dtype: str
) -> Any:
    role = _start(rank, world, port, path, megatron, dtype)
    set_seed(7)
    for seed in range(steps):
        _train(role, seed)
    role.save(Path(folder))
    result = _continue(role)
    parallel.stop()
    return result


def _loaded(
    rank: int,
    world: int,
    port: int,
    path: str,
    folder: str,
    megatron: dict[str, Any],
    dtype: str,
    again: str = "",
) -> Any:
    role = _start(rank, world, port, path, megatron, dtype)
    _train(role, 99)  # what was there before must not show through
    role.load(Path(folder))
    if again:
        role.save(Path(again))
    result = _continue(role)
    parallel.stop()
    return result


def _same(found: Any, expected: Any) -> None:
    assert found[0] == expected[0]
    assert found[2] == expected[2]
    for name, array in expected[1].items():
        assert np.array_equal(found[1][name], array), name


def _close(found: Any, expected: Any) -> None:
    for step, wanted in zip(found[0], expected[0], strict=True):
        assert step.lr == wanted.lr
        assert step.finite
        assert step.loss == pytest.approx(wanted.loss, rel=1e-3, abs=1e-4)
        assert step.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-3)
    for name, array in expected[1].items():
        np.testing.assert_allclose(found[1][name], array, atol=2e-4, rtol=0)


@pytest.mark.grid
@pytest.mark.parametrize(
    ("steps", "sharded", "dtype"),
    [(2, True, "bf16"), (0, False, "fp32"), (2, True, "fp32"), (0, True, "fp32"), (2, False, "bf16")],
)
def test_one_rank_continues_bit_by_bit(
    model: str, tmp_path: Path, steps: int, sharded: bool, dtype: str
) -> None:
    """Also from an optimizer that never stepped."""
    folder, megatron = str(tmp_path / "saved"), {"use_distributed_optimizer": sharded}
    expected = run_ranks(_saved, 1, model, folder, megatron, steps, dtype)[0]
    _same(run_ranks(_loaded, 1, model, folder, megatron, dtype)[0], expected)


def _tensors(folder: str) -> dict[str, torch.Tensor]:
    """Every weight and optimizer state in a checkpoint, whole, without the padding of the vocabulary."""
    reader = FileSystemReader(folder)
    entries = reader.read_metadata().state_dict_metadata
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with quiet():
        load(state, storage_reader=reader, no_dist=True)
    padded = ("embedding.word_embeddings.weight", "output_layer.weight")
    return {name: value[:VOCAB_SIZE] if name.endswith(padded) else value for name, value in state.items()}


@pytest.mark.full
def test_two_tensor_parallel_ranks_continue_bit_by_bit_and_other_layouts_closely(
    model: str, tmp_path: Path
) -> None:
    """What another layout has read is the same to the last bit: it saves the same tensors again."""
    folder = str(tmp_path / "saved")
    expected = run_ranks(_saved, 2, model, folder, TENSOR, 2, "fp32")
    saved = _tensors(folder)
    assert sum("exp_avg" in name for name in saved) > sum("optimizer" not in name for name in saved)
    for found, wanted in zip(run_ranks(_loaded, 2, model, folder, TENSOR, "fp32"), expected, strict=True):
        _same(found, wanted)
    for number, (world, megatron) in enumerate(((1, {}), (2, {}), (2, PIPELINE))):
        again = str(tmp_path / f"again{number}")
        for found in run_ranks(_loaded, world, model, folder, megatron, "fp32", again):
            _close(found, expected[0])
        resaved = _tensors(again)
        torch.testing.assert_close(resaved, saved, rtol=0, atol=0)


class Payload:
    """Runs `touch <marker>` when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._command = f"touch {marker}"

    def __reduce__(self) -> Any:
        return os.system, (self._command,)


def _bad_metadata(folder: Path, payload: Payload) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(payload))


def _bad_common(folder: Path, payload: Payload) -> None:
    torch.save({"optimizer": payload, "steps": 1}, folder / "common.pt")


def _bad_random_states(folder: Path, payload: Payload) -> None:
    torch.save(payload, folder / "random_00000.pt")


def _bad_data(folder: Path, payload: Payload) -> None:
    torch.save(payload, folder / "__0_0.distcp")


def _tensor_turned_pickle(folder: Path, payload: Payload) -> None:
    """The metadata is harmless; it claims that a weight is stored as a pickled object."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    name = next(key for key in metadata.state_dict_metadata if "embedding" in key and "optimizer" in key)
    claim: Any = BytesStorageMetadata()
    claim.size = metadata.state_dict_metadata[name].size  # passes the check of shapes
    metadata.state_dict_metadata[name] = claim
    index, info = next((key, info) for key, info in metadata.storage_data.items() if key.fqn == name)
    torch.save(payload, folder / "evil")
    info.relative_path, info.offset, info.length = "evil", 0, (folder / "evil").stat().st_size
    metadata.storage_data[type(index)(name)] = info
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def _outside(folder: Path, payload: Payload) -> None:
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    next(iter(metadata.storage_data.values())).relative_path = "../elsewhere"
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def _truncated(folder: Path, payload: Payload) -> None:
    data = folder / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:1000])


def _no_description(folder: Path, payload: Payload) -> None:
    (folder / "metadata.json").unlink()


ATTACKS: dict[Callable[[Path, Payload], None], str] = {
    _bad_metadata: r"\.metadata is refused: .*system is not allowed",
    _bad_common: r"common\.pt is refused",
    _bad_random_states: r"random_00000\.pt is refused",
    _bad_data: "cannot be read",
    _tensor_turned_pickle: "BytesStorageMetadata is not allowed",
    _outside: "is no file of the checkpoint",
    _truncated: "cannot be read",
    _no_description: "is no checkpoint of a model",
}


def _refuses(rank: int, world: int, port: int, path: str, other: str, root: str) -> bool:
    role = _start(rank, world, port, path, {})
    good, marker = Path(root) / "good", Path(root) / "ran"
    role.save(good)
    for attack, reason in ATTACKS.items():
        bad = Path(root) / attack.__name__
        shutil.copytree(good, bad)
        attack(bad, Payload(marker))
        with pytest.raises(CheckpointError, match=reason):
            role.load(bad)
        assert not marker.exists(), attack.__name__
    role.load(good)
    with pytest.raises(CheckpointError, match="is no checkpoint of a model"):
        role.load(Path(root) / "nowhere")
    parallel.stop()
    with pytest.raises(CheckpointError, match="use-distributed-optimizer true"):
        _start(rank, world, 0, path, {"use_distributed_optimizer": False}).load(good)
    _check_frozen(path, good, Path(root) / "frozen")
    parallel.stop()
    with pytest.raises(CheckpointError, match="is no checkpoint of this model"):
        _start(rank, world, 0, other, {}).load(good)
    parallel.stop()
    return True


def _check_frozen(path: str, trained: Path, folder: Path) -> None:
    """A frozen role reads a trained one's weights; a trained one cannot continue from a frozen one."""
    frozen = Role(ModelSpec(path=path, bridge=QWEN), None)
    frozen.load(trained)
    frozen.save(folder)
    with pytest.raises(CheckpointError, match="without an optimizer"):
        Role(ModelSpec(path=path, bridge=QWEN), SETTINGS).load(folder)


def test_a_malicious_damaged_or_foreign_checkpoint_is_refused(
    model: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = str(make_qwen3(tmp_path_factory.mktemp("other"), intermediate_size=64))
    assert run_ranks(_refuses, 1, model, other, str(tmp_path)) == [True]


def _written_beside(rank: int, world: int, port: int, path: str, folder: str) -> Any:
    """A role that is written by a thread, while it trains on."""
    parallel.start(rank, world, "127.0.0.1", port)
    role = Role(ModelSpec(path=path, bridge=QWEN), SETTINGS, writers=dist.new_group(backend="gloo"))
    set_seed(7)
    _train(role, 0)
    staged = role.stage()
    with ThreadPoolExecutor(1) as thread:
        written = thread.submit(staged.write, Path(folder))
        result = _continue(role)
        written.result(timeout=60)
    parallel.stop()
    return result


def test_what_was_staged_is_written_while_training_goes_on(model: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    expected = run_ranks(_written_beside, 2, model, folder)
    for found, wanted in zip(run_ranks(_loaded, 2, model, folder, {}, "fp32"), expected, strict=True):
        _same(found, wanted)


def _runs_out(rank: int, world: int, port: int, path: str, root: str) -> bool:
    role = _start(rank, world, port, path, {})
    with write_atomically(Path(root) / "1") as folder:
        role.save(folder)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (100_000, 500):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))  # a write beyond it fails as on a full disk
        try:
            with (
                pytest.raises(CheckpointError, match="could not be written"),
                write_atomically(Path(root) / "2") as folder,
            ):
                role.save(folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert os.listdir(root) == ["1"]
        assert newest_complete(Path(root)) == Path(root) / "1"
    with write_atomically(Path(root) / "2") as folder:
        role.save(folder)
    role.load(Path(root) / "2")
    parallel.stop()
    return True


def test_a_failing_disk_leaves_nothing_and_training_can_go_on(model: str, tmp_path: Path) -> None:
    assert run_ranks(_runs_out, 1, model, str(tmp_path)) == [True]
