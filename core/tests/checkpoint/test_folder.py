"""Folders that are complete or absent, whatever interrupts their writing."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from safetensors import SafetensorError

from rlcore import COMPLETE_MARKER, CheckpointError, write_atomically
from rlcore.checkpoint.folder import (
    FORMAT_VERSION,
    _marker_text,
    check_files,
    checkpoints,
    newest_complete,
    newest_intact,
    prune,
    read_marker,
)


def _write(final: Path, text: str = "weights") -> Path:
    with write_atomically(final, {"step": int(final.name)}) as folder:
        (folder / "part").mkdir()
        (folder / "part" / "data").write_text(text)
    return final


def _write_and_raise(folder: Path, error: BaseException) -> None:
    (folder / "data").write_text("half")
    raise error


def test_a_folder_appears_whole_with_its_marker(tmp_path: Path) -> None:
    final = tmp_path / "runs" / "7"
    with write_atomically(final, {"step": 7}) as folder:
        assert not final.exists()
        assert folder.parent == final.parent
        (folder / "data").write_text("x")
        assert newest_complete(final.parent) is None
    assert sorted(path.name for path in final.iterdir()) == [COMPLETE_MARKER, "data"]
    files = {"data": {"bytes": 1, "xxh3_128": xxhash.xxh3_128_hexdigest(b"x")}}
    assert read_marker(final) == {"format_version": FORMAT_VERSION, "step": 7, "files": files}
    check_files(final)
    assert os.listdir(final.parent) == ["7"]


@pytest.mark.parametrize("error", [RuntimeError("a worker died"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_nothing_and_keeps_the_old_one(
    tmp_path: Path, error: BaseException
) -> None:
    final = _write(tmp_path / "1", "old")
    with pytest.raises(type(error)), write_atomically(final) as folder:
        _write_and_raise(folder, error)
    assert os.listdir(tmp_path) == ["1"]
    assert (final / "part" / "data").read_text() == "old"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path, error: Exception) -> None:
    with (
        pytest.raises(CheckpointError, match=r"5 could not be written: the disk is full"),
        write_atomically(tmp_path / "5") as folder,
    ):
        _write_and_raise(folder, error)
    assert os.listdir(tmp_path) == []


def test_a_place_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with (
        pytest.raises(CheckpointError, match="could not be written"),
        write_atomically(tmp_path / "run" / "1"),
    ):
        pytest.fail("nothing can be written there")


def test_a_write_replaces_what_was_there(tmp_path: Path) -> None:
    _write(tmp_path / "1", "old")
    assert (_write(tmp_path / "1", "new") / "part" / "data").read_text() == "new"


def test_only_complete_numbered_folders_count_and_the_newest_wins(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        _write(tmp_path / str(step))
    (tmp_path / "11").mkdir()  # never finished
    (tmp_path / "12.partial").mkdir()
    (tmp_path / "best").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["2", "9", "10"]
    assert newest_complete(tmp_path) == tmp_path / "10"
    assert checkpoints(tmp_path / "nowhere") == []
    assert newest_complete(tmp_path / "nowhere") is None


def _flip(file: Path) -> None:
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (_flip, r"part/data is damaged: its checksum is another one than when it was written\.$"),
    "truncated": (
        lambda file: file.write_bytes(b"wei"),
        r"part/data is damaged: its size is 3 bytes, and was 7 when it was written\.$",
    ),
    "missing": (Path.unlink, r"part/data is missing\.$"),
    "extra": (
        lambda file: file.with_name("more").write_text("x"),
        r"part/more is not a file of that checkpoint; remove it\.$",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_is_not_as_it_was_written_is_named(tmp_path: Path, fault: str) -> None:
    break_it, said = FAULTS[fault]
    older, newer = _write(tmp_path / "1"), _write(tmp_path / "2")
    assert newest_intact(tmp_path) == (newer, [])
    break_it(newer / "part" / "data")
    with pytest.raises(CheckpointError, match=said):
        check_files(newer)
    found, [error] = newest_intact(tmp_path)
    assert found == older
    assert re.search(said, str(error))


def test_every_flipped_bit_of_the_marker_is_damage_and_the_checkpoint_before_is_taken(tmp_path: Path) -> None:
    older, newer = _write(tmp_path / "1"), _write(tmp_path / "2")
    marker = newer / COMPLETE_MARKER
    intact = marker.read_bytes()
    for bit in range(8 * len(intact)):
        flipped = bytearray(intact)
        flipped[bit // 8] ^= 1 << bit % 8
        marker.write_bytes(flipped)
        found, [error] = newest_intact(tmp_path)
        assert found == older, bit
        assert str(marker) in str(error)
    marker.write_bytes(intact)
    assert newest_intact(tmp_path) == (newer, [])


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_a_marker_that_is_cut_short_is_damage(tmp_path: Path, cut: int) -> None:
    older, newer = _write(tmp_path / "1"), _write(tmp_path / "2")
    marker = newer / COMPLETE_MARKER
    marker.write_bytes(marker.read_bytes()[:cut])
    assert newest_intact(tmp_path)[0] == older


def test_prune_keeps_the_newest_and_sweeps_leftovers(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        _write(tmp_path / str(step))
    (tmp_path / "4.partial").mkdir()
    prune(tmp_path, 2, step=3)
    assert sorted(os.listdir(tmp_path)) == ["2", "3"]
    prune(tmp_path, 5, step=3)
    assert sorted(os.listdir(tmp_path)) == ["2", "3"]


def test_what_a_resumed_run_passed_over_does_not_count_as_kept(tmp_path: Path) -> None:
    for step in (1, 2, 5):
        _write(tmp_path / str(step))
    prune(tmp_path, 1, step=2)
    assert sorted(os.listdir(tmp_path)) == ["2", "5"]


def test_a_lost_marker_is_damage_and_a_newer_format_is_refused(tmp_path: Path) -> None:
    older, newer = _write(tmp_path / "1"), _write(tmp_path / "2")
    (newer / COMPLETE_MARKER).unlink()
    found, [error] = newest_intact(tmp_path)
    assert found == older
    assert str(error) == f"{newer} is no complete checkpoint: it has no {COMPLETE_MARKER}."
    (newer / COMPLETE_MARKER).write_text(_marker_text({"format_version": FORMAT_VERSION + 1}))
    with pytest.raises(CheckpointError, match=f"reads up to {FORMAT_VERSION}; use the version that wrote"):
        newest_intact(tmp_path)
    prune(tmp_path / "nowhere", 1, step=3)


def test_an_unfinished_damaged_or_newer_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        read_marker(tmp_path)
    (tmp_path / COMPLETE_MARKER).write_text("{")
    with pytest.raises(CheckpointError, match="no JSON"):
        read_marker(tmp_path)
    (tmp_path / COMPLETE_MARKER).write_text(_marker_text({"format_version": FORMAT_VERSION + 1}))
    with pytest.raises(CheckpointError, match="checkpoint format 2"):
        read_marker(tmp_path)
    (tmp_path / COMPLETE_MARKER).write_text("[" * 200_000)
    with pytest.raises(CheckpointError, match="is no JSON: nested too deeply"):
        read_marker(tmp_path)
    (tmp_path / COMPLETE_MARKER).write_text("[]")
    with pytest.raises(CheckpointError, match="damaged: its checksum"):
        read_marker(tmp_path)
