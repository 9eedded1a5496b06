"""Pickles that run code are refused, and do not run."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata

from rlcore.api.errors import CheckpointError
from rlcore_megatron.mcore.checkpoint.unpickle import read_pickle
from rlcore_toolkit import read_tensors


class Payload:
    """Runs `touch <marker>` when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._command = f"touch {marker}"

    def __reduce__(self) -> Any:
        return os.system, (self._command,)


def test_the_payload_is_a_real_one(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, protocol: int) -> None:
    (tmp_path / "bad").write_bytes(pickle.dumps({"key": [Payload(tmp_path / "ran")]}, protocol))
    with pytest.raises(CheckpointError, match=r"bad is refused: .*system is not allowed"):
        read_pickle(tmp_path / "bad")
    assert not (tmp_path / "ran").exists()


def test_builtins_and_dotted_names_are_refused(tmp_path: Path) -> None:
    for text in (b"cbuiltins\neval\n(V1\ntR.", b"\x80\x04\x8c\x05torch\x8c\x0cSize.__new__\x93."):
        (tmp_path / "bad").write_bytes(text)
        with pytest.raises(CheckpointError, match="is not allowed"):
            read_pickle(tmp_path / "bad")


def test_plain_metadata_is_read(tmp_path: Path) -> None:
    metadata = Metadata({}, planner_data=torch.Size([2, 3]))
    (tmp_path / "good").write_bytes(pickle.dumps(metadata))
    assert read_pickle(tmp_path / "good") == metadata


def test_members_of_enums_are_read_as_older_pythons_write_them(tmp_path: Path) -> None:
    """Python 3.11.0 to 3.11.3 pickle one as `getattr` of its class; of anything else that is refused."""
    of = "ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"
    (tmp_path / "good").write_text(f"cbuiltins\ngetattr\n({of}VTORCH_CONTIGUOUS_FORMAT\ntR.")
    assert read_pickle(tmp_path / "good") is _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
    for named in (f"{of}V__class__", "ctorch\nSize\nV__new__", "Vtext\nVupper"):
        (tmp_path / "bad").write_text(f"cbuiltins\ngetattr\n({named}\ntR.")
        with pytest.raises(CheckpointError, match=r"bad is refused: getattr of \w+ is not allowed"):
            read_pickle(tmp_path / "bad")


def test_tensors_are_read_and_payloads_among_them_refused(tmp_path: Path) -> None:
    torch.save({"step": 3, "state": (torch.ones(2), "x")}, tmp_path / "good.pt")
    assert read_tensors(tmp_path / "good.pt")["step"] == 3
    torch.save({"step": Payload(tmp_path / "ran")}, tmp_path / "bad.pt")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    for name in ("bad.pt", "raw.pt"):
        with pytest.raises(CheckpointError, match=f"{name} is refused"):
            read_tensors(tmp_path / name)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("read", [read_pickle, read_tensors])
def test_missing_and_damaged_files_are_one_sentence(tmp_path: Path, read: Any) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        read(tmp_path / "none")
    for content in (b"", b"\x00garbage", pickle.dumps(list(range(100)))[:20]):
        (tmp_path / "damaged").write_bytes(content)
        with pytest.raises(CheckpointError, match="is refused"):
            read(tmp_path / "damaged")
