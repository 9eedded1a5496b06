"""What has changed between two versions: bit-exact both ways, and refused where it does not fit."""

import asyncio
import sys
import threading
from collections.abc import Mapping
from importlib.util import find_spec, module_from_spec
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from rlcore import DeltaError, WeightsLocation, checksum
from rlcore.engines.publish_file import FILE
from rlcore_toolkit import checksums_of
from rlcore_toolkit.publishers import delta
from rlcore_toolkit.publishers.delta_publisher import MOST_CHANGES, DeltaPublisher, Mirror

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8)
Tensors = dict[str, Tensor]


@st.composite
def two_versions(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Tensors of any bits (NaN and infinities too) and of one shape, of which some numbers differ."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    size = dtype.itemsize * torch.Size(shape).numel()
    old, noise = (bytearray(draw(st.binary(min_size=size, max_size=size))) for _ in range(2))
    kept = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    new = bytearray(a if keep else b for a, b, keep in zip(old, noise, kept, strict=True))
    return _tensor(old, dtype, shape), _tensor(new, dtype, shape)


def _tensor(raw: bytearray, dtype: torch.dtype, shape: list[int]) -> Tensor:
    flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


@settings(max_examples=60, deadline=None)
@given(two_versions())
def test_a_change_applied_gives_the_new_bits(pair: tuple[Tensor, Tensor]) -> None:
    old, new = pair
    made = delta.apply(old, delta.compress(old, new))
    assert (made.shape, made.dtype, checksum(made)) == (new.shape, new.dtype, checksum(new))


def first(seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(64, 96, generator=generator),
        "b": torch.randn(96, generator=generator).bfloat16(),
        "c": torch.randn(300, generator=generator),
    }


def stepped(tensors: Mapping[str, Tensor], step: int = 1) -> Tensors:
    """A small step of training, that leaves "c" as it is."""
    moved = {name: one.clone() for name, one in tensors.items()}
    moved["a"] += 1e-5 * step
    moved["b"][::7] += 0.25
    return moved


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """From `first()`, version 4, to `stepped(first())`, version 5."""
    old, new = first(), stepped(first())
    delta.write(tmp_path / "d", base=(4, old, checksums_of(old)), new=(5, new, checksums_of(new)))
    return tmp_path / "d"


def test_only_what_changed_is_in_the_file(file: Path) -> None:
    with safe_open(file, framework="pt") as opened:
        assert sorted(opened.keys()) == ["a", "b"]
        assert opened.get_tensor("a").numel() < first()["a"].nbytes
    made = dict(delta.apply_delta(file, first(), "4"))
    assert {name: checksum(one) for name, one in made.items()} == {
        name: checksum(stepped(first())[name]) for name in "ab"
    }


def test_another_base_is_refused(file: Path) -> None:
    for held in ("3", "default"):
        with pytest.raises(
            DeltaError, match=rf"turns version 4 of the weights into 5, but version {held} is"
        ):
            dict(delta.apply_delta(file, first(), held))
    with pytest.raises(DeltaError, match=r"not lead to version 5: the 'a' that is held is not that of ver"):
        dict(delta.apply_delta(file, first(seed=1), "4"))
    with pytest.raises(DeltaError, match=r"changes 'a', which is not held"):
        dict(delta.apply_delta(file, {"b": first()["b"]}, "4"))


def test_bytes_that_were_turned_or_cut_are_refused(file: Path) -> None:
    raw = file.read_bytes()
    for place in range(0, len(raw), 397):
        file.write_bytes(raw[:place] + bytes([raw[place] ^ 0x40]) + raw[place + 1 :])
        with pytest.raises(DeltaError):
            dict(delta.apply_delta(file, first(), "4"))
    for length in (0, 7, len(raw) // 2, len(raw) - 1):
        file.write_bytes(raw[:length])
        with pytest.raises(DeltaError):
            dict(delta.apply_delta(file, first(), "4"))


def test_bytes_that_do_not_unpack_are_refused(file: Path) -> None:
    junk = torch.arange(50, dtype=torch.uint8)
    changes = delta.read_changes(file)
    fine = delta.Change(digest=delta._digest(junk), checksum=changes.tensors["a"].checksum)
    save_file(
        {"a": junk}, file, {"rlcore": changes.model_copy(update={"tensors": {"a": fine}}).model_dump_json()}
    )
    with pytest.raises(DeltaError, match="is damaged"):
        dict(delta.apply_delta(file, first(), "4"))


# --- publication ---------------------------------------------------------------------------------------


def publisher(tmp_path: Path) -> DeltaPublisher:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return DeltaPublisher(root=tmp_path / "versions", dtype="fp32", model_path=model)


def checked(location: WeightsLocation, tensors: Tensors, directory: str) -> None:
    """`directory` is a whole model of `tensors`."""
    wanted = {name: one.float() for name, one in tensors.items()}
    assert location.checksums == checksums_of(wanted)
    with safe_open(Path(directory) / FILE, framework="pt") as opened:
        assert {name: checksum(opened.get_tensor(name)) for name in opened.keys()} == checksums_of(wanted)  # noqa: SIM118 - no mapping
    assert (Path(directory) / "config.json").is_file()


async def test_a_chain_of_changes_gives_every_version(tmp_path: Path) -> None:
    one, late, held = publisher(tmp_path), Mirror(), first()
    for version in range(3, 6):
        location = one.write(held.items(), version)
        assert len(location.chain) == version - 3
        checked(location, held, await one.directory(location))
        before, held = held, stepped(held, version)
    checked(location, before, await late.directory(tmp_path / "late", location))
    assert Path(location.chain[-1]).stat().st_size < Path(location.file).stat().st_size


async def test_a_mirror_is_made_once_whoever_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine dies while its directory is made, on a slow disk, and another waits for the same one."""
    one, mirror, held = publisher(tmp_path), Mirror(), first()
    one.write(held.items(), 1)
    location = one.write(stepped(held, 1).items(), 2)
    begun, hold, made = threading.Event(), threading.Event(), Mirror._write
    calls = []

    def slow(self: Mirror, root: Path, location: WeightsLocation) -> Path:
        calls.append(root)
        begun.set()
        hold.wait(30.0)
        return made(self, root, location)

    monkeypatch.setattr(Mirror, "_write", slow)
    leaving = asyncio.ensure_future(mirror.directory(tmp_path / "mirror", location))
    await asyncio.to_thread(begun.wait, 30.0)
    leaving.cancel()
    await asyncio.wait([leaving])
    staying = asyncio.ensure_future(mirror.directory(tmp_path / "mirror", location))
    await asyncio.sleep(0.05)
    hold.set()
    checked(location, stepped(held, 1), await staying)
    assert len(calls) == 1


async def test_parameters_that_move_on_do_not_move_what_was_sent(tmp_path: Path) -> None:
    one, held = publisher(tmp_path), first()
    one.write(held.items(), 1)
    for version in (2, 3):
        with torch.no_grad():
            held["a"].mul_(1.5)
        location = one.write(held.items(), version)
        checked(location, held, await one.directory(location))


async def test_a_whole_version_follows_what_is_as_large(tmp_path: Path) -> None:
    one, chains, kept = publisher(tmp_path), [], 0
    for version in range(8):
        location = one.write(first(seed=version).items(), version)
        chains.append(len(location.chain))
        kept = max(kept, sum(file.stat().st_size for file in (tmp_path / "versions").rglob("*.safetensors")))
        checked(location, first(seed=version), await one.directory(location))
    assert chains[:2] == [0, 1]
    assert 0 in chains[2:]
    assert kept < 6.5 * Path(location.file).stat().st_size
    for version in range(8, 8 + MOST_CHANGES + 2):
        location = one.write(first().items(), version)
        assert len(location.chain) <= MOST_CHANGES


async def test_damage_is_told_and_a_whole_version_helps(tmp_path: Path) -> None:
    one, held = publisher(tmp_path), first()
    one.write(held.items(), 1)
    held = stepped(held)
    location = one.write(held.items(), 2)
    raw = bytearray(Path(location.chain[-1]).read_bytes())
    raw[-5] ^= 1
    Path(location.chain[-1]).write_bytes(raw)
    with pytest.raises(DeltaError, match="is damaged"):
        await one.directory(location)
    location = one.write(held.items(), 2, whole=True)
    assert location.chain == ()
    checked(location, held, await one.directory(location))
    held = stepped(held)
    location = one.write(held.items(), 3)
    assert len(location.chain) == 1
    checked(location, held, await one.directory(location))


def test_pyarrow_is_imported_for_a_delta_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers and publishers of every way import the module."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as where it does not work
    spec = find_spec(delta.__name__)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module_from_spec(spec))
