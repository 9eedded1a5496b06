"""The files of a publication."""

import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from rlcore import EngineError, checksum
from rlcore.engines.publish_file import FILE
from rlcore_machine.shared_memory import shared_dir
from rlcore_toolkit import write_version


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "b.weight": torch.randn(3, 5, generator=generator).t(),
        "a.weight": torch.randn(7, generator=generator),
        "scalar": torch.tensor(2.5),
    }


def test_a_version_is_written_whole_with_its_checksums(tmp_path: Path) -> None:
    location = write_version(tmp_path, tensors().items(), 4, dtype="fp32")
    assert (location.version, location.directory) == (4, str(tmp_path / "4"))
    with safe_open(location.file, framework="pt") as opened:
        for name, value in tensors().items():
            assert torch.equal(opened.get_tensor(name), value)
            assert location.checksums[name] == checksum(value)


def test_values_are_cast_to_the_engines_precision(tmp_path: Path) -> None:
    location = write_version(tmp_path, tensors().items(), 1, dtype="bf16")
    with safe_open(location.file, framework="pt") as opened:
        assert opened.get_tensor("a.weight").dtype == torch.bfloat16
    assert location.checksums["a.weight"] == checksum(tensors()["a.weight"].bfloat16())


def test_two_versions_are_kept_and_one_can_be_written_again(tmp_path: Path) -> None:
    for version in (1, 2, 3, 3):
        write_version(tmp_path, tensors().items(), version, dtype="fp32")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]


def test_a_model_directory_has_config_and_tokenizer_but_no_other_weights(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json"):
        (model / name).write_text("{}")
    location = write_version(tmp_path / "out", tensors().items(), 1, dtype="fp32", model_path=model)
    assert sorted(os.listdir(location.directory)) == ["config.json", FILE, "tokenizer.json"]


def test_a_folder_that_cannot_be_written_is_named_and_left_clean(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match=r"version 1 cannot be written to .*/file: .*Not a directory"):
        write_version(tmp_path / "file", tensors().items(), 1, dtype="fp32")


def test_a_shared_folder_is_private_and_on_disk_where_memory_has_no_room() -> None:
    small, large = shared_dir("test", 1000), shared_dir("test", 10**18)
    try:
        assert small.stat().st_mode & 0o077 == 0
        assert not str(large).startswith("/dev/shm")
    finally:
        small.rmdir()
        large.rmdir()
