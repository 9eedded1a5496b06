"""Tensors of several files: one that an index places, and one whose rows lie in each."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from rlcore_toolkit import SafetensorsFiles


def test_an_index_says_which_file_holds_a_tensor(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "1.safetensors")
    save_file({"a": torch.zeros(2), "b": torch.zeros(2)}, tmp_path / "2.safetensors")
    (tmp_path / "config.json").write_text("{}")
    index = {"weight_map": {"a": "1.safetensors", "c": "absent.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    files = SafetensorsFiles.of(tmp_path)
    assert [*files.names] == ["a", "c"]
    assert torch.equal(files.read("a"), torch.ones(2))


def test_rows_are_those_of_all_files(tmp_path: Path) -> None:
    """Also where a file has none of them."""
    whole = torch.arange(10.0).view(5, 2)
    paths = [tmp_path / f"{number}.safetensors" for number in range(4)]
    for path, part in zip(paths, whole.split([2, 0, 2, 1]), strict=True):
        save_file({"a": part.clone()}, path)
    files = SafetensorsFiles.joined(paths)
    assert files.shape("a") == (5, 2)
    for start in range(6):
        for stop in range(start, 7):
            assert torch.equal(files.read("a", slice(start, stop)), whole[start:stop])
