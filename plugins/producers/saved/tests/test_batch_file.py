"""A batch in a file is what it was, and a file that is none is refused in one sentence."""

from dataclasses import asdict
from pathlib import Path

import pytest
import safetensors.torch
import torch
from refusals import Case, cases

from rlcore import Column, DataError, Json, TrainBatch
from rlcore.learning.batch_file import save_batch
from rlcore_saved.batch_file import load_batch, read_about
from rlcore_testing.items import check_same, with_items

BATCH = with_items(
    TrainBatch(
        tokens=torch.arange(7),
        prompt_lengths=torch.tensor([2, 1]),
        response_lengths=torch.tensor([1, 3]),
        per_token={"log.probs": torch.tensor([0.1, -0.0, float("inf"), 1e-40])},
        per_sample={"group": torch.tensor([3, 3])},
        per_input={"routed_experts": torch.ones(7, 2, 1, dtype=torch.int16)},
        columns={"routed_experts": Column(per="input", padding=(0,), is_sliced=True, reach="policy")},
    ),
    [0, 2],
)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "1.safetensors"
    save_batch(BATCH, file, {"step": 1, "metrics": {"rollout/reward_mean": 0.1}})
    check_same(load_batch(file), BATCH)
    about = read_about(file)
    assert about.pop("columns")["marks"]["lengths"] == "items"
    assert about == {"format": 1, "step": 1, "metrics": {"rollout/reward_mean": 0.1}}
    assert [one.name for one in file.parent.iterdir()] == ["1.safetensors"]


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"tokens": torch.arange(2)}, "has no 'prompt_lengths', so it is no batch"),
        (
            {
                "tokens": torch.arange(2),
                "prompt_lengths": torch.tensor([1]),
                "response_lengths": torch.tensor([1]),
                "per_token.loss_mask": torch.ones(2),
            },
            "'per_token.loss_mask' has 2 entries, expected 1",
        ),
        (
            {
                "tokens": torch.arange(3),
                "prompt_lengths": torch.tensor([1]),
                "response_lengths": torch.tensor([1, 1]),
            },
            "'response_lengths' has 2 entries, expected 1",
        ),
    ],
)
def test_other_tensors_are_no_batch(tmp_path: Path, tensors: dict[str, torch.Tensor], said: str) -> None:
    file = tmp_path / "1.safetensors"
    safetensors.torch.save_file(tensors, file)
    with pytest.raises(DataError, match=said):
        load_batch(file)
    with pytest.raises(DataError, match="its header is not rlcore's"):
        read_about(file)


@pytest.mark.parametrize("about", [{"format": 2}, {"format": None}])
def test_another_format(tmp_path: Path, about: dict[str, Json]) -> None:
    file = tmp_path / "1.safetensors"
    save_batch(BATCH, file, about)
    with pytest.raises(DataError, match=r"1\.safetensors: format (2|None), and this rlcore reads format 1;"):
        read_about(file)


def test_a_damaged_file(tmp_path: Path) -> None:
    file = tmp_path / "1.safetensors"
    file.write_bytes(b"\x80\x04.")
    for read in (load_batch, read_about):
        with pytest.raises(DataError, match=r"1\.safetensors: cannot be read as safetensors"):
            read(file)


@cases("saved: columns")
def test_columns_that_are_not_as_declared(tmp_path: Path, case: Case) -> None:
    file = tmp_path / "1.safetensors"
    columns = {name: asdict(column) for name, column in BATCH.columns.items()} | case.given
    save_batch(BATCH, file, {"columns": {name: value for name, value in columns.items() if value}})
    with case.refused(DataError, tmp_path):
        load_batch(file)
