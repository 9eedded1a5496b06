"""Publication of weights: a train worker writes a version, each engine loads it and is checked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import Tensor

from rlcore.api.errors import StaleWeightsError
from rlcore.engines.client import EngineClient
from rlcore.engines.publish_file import Fp8Weights, WeightsLocation, copy_side_files, write_version
from rlcore.engines.stream import Piece
from rlcore_machine.tasks import together

AskTrainer = Callable[..., Awaitable[Any]]
"""`ask(call, *arguments)` runs `answer` of the first train worker's publisher, beside training."""


class Publisher(Protocol):
    """One way for weights from trainer to engine. Small and picklable: both sides have a copy."""

    is_streamed: ClassVar[bool]
    """Whether weights come in `pieces` from the trainer's memory, instead of a file that `write` leaves."""
    is_by_host: ClassVar[bool]
    """Whether engines take them from their own host: a rank on each host sends, else only the first rank."""

    @property
    def sources(self) -> Sequence[int]:
        """Of one engine: for each of its ranks, the train rank on its device (`beside`); empty: none is."""

    def write(
        self, tensors: Iterable[tuple[str, Tensor]], version: int, *, whole: bool = False
    ) -> WeightsLocation:
        """In the train worker: stores all weights, by Hugging Face name, as `version`.

        `whole`: write it so that an engine can load it without any earlier version.
        """

    async def load(
        self,
        client: EngineClient,
        location: WeightsLocation,
        *,
        keep_cache: bool = False,
        is_idle: bool = False,
    ) -> None:
        """In the driver: one engine takes the weights up; requests under way go on with them.

        `keep_cache`: keep the keys and values that the old weights made; otherwise they are computed anew.
        `is_idle`: there are neither requests nor keys and values, so nothing is paused or flushed. It is
        passed only where that is so. Raises EngineError if the engine fails, and leaves it paused unless
        `is_idle`; StaleWeightsError if the engine reports another version, or a checksum that is not the
        trainer's; DeltaError if the version must be written whole.
        """

    async def directory(self, location: WeightsLocation) -> str:
        """In the driver: a folder with the whole of `location` as `model.safetensors`."""

    def beside(self, sources: Sequence[int]) -> Publisher:
        """In the driver: the same for one engine, which has these `sources`."""

    def feeding(self, readers: int) -> Publisher:
        """For a train worker: the same, with that many ranks of engines on the worker's device that take
        weights from it.
        """

    def in_fp8(self, weights: Fp8Weights) -> Publisher:
        """In the driver: the same for engines that hold `weights` in FP8."""

    def connect(self, ask: AskTrainer, here: str | None = None) -> None:
        """In the driver, before the first publication: how to ask the trainer's side.

        `here`: the address of this host in the cluster, if the trainer is on another one.
        """

    def answer(self, call: str, *arguments: Any) -> Any:
        """In the first train worker: answer a call of `ask`."""

    def pieces(
        self, tensors: Iterable[tuple[str, Tensor]], *, sends: bool, tells: bool
    ) -> Generator[Piece, None, None]:
        """In each train worker, whose ranks gather `tensors` together: the pieces, one at a time.

        `sends`: this rank keeps the bucket of a piece for engines until the next piece is asked for. `tells`:
        its pieces go to the driver, with their checksums.
        """

    def clean(self) -> None:
        """In a train worker that sends, at the end: remove what this host still holds."""


@dataclass(frozen=True, kw_only=True)
class FilePublisher:
    """The base of most ways: a folder that trainer and engine both see, and the engine's dtype.

    `fp8`: the weights that engines hold in FP8 in its place.
    """

    is_streamed: ClassVar[bool] = False
    is_by_host: ClassVar[bool] = False

    root: Path
    dtype: str
    fp8: Fp8Weights | None = None
    sources: Sequence[int] = ()

    def beside(self, sources: Sequence[int]) -> Publisher:
        return replace(self, sources=tuple(sources)) if sources else self

    def feeding(self, readers: int) -> Publisher:
        """The same: how many read makes no difference."""
        return self

    def in_fp8(self, weights: Fp8Weights) -> Publisher:
        return replace(self, fp8=weights)

    def connect(self, ask: AskTrainer, here: str | None = None) -> None:
        """Does nothing: the files say everything."""

    def answer(self, call: str, *arguments: Any) -> Any:
        raise NotImplementedError

    def pieces(
        self, tensors: Iterable[tuple[str, Tensor]], *, sends: bool, tells: bool
    ) -> Generator[Piece, None, None]:
        raise NotImplementedError

    def clean(self) -> None:
        """Does nothing: the end of the run removes the folder."""

    def write(
        self, tensors: Iterable[tuple[str, Tensor]], version: int, *, whole: bool = False
    ) -> WeightsLocation:
        return write_version(self.root, tensors, version, dtype=self.dtype, fp8=self.fp8)

    async def load(
        self,
        client: EngineClient,
        location: WeightsLocation,
        *,
        keep_cache: bool = False,
        is_idle: bool = False,
    ) -> None:
        if not is_idle:
            # Retracted requests compute their prefixes anew, so no cache of the old weights is left behind.
            await client.pause("in_place" if keep_cache else "retract")
        checksums = await self._send(client, location)
        checks = [verify(client, replace(location, checksums=checksums))]
        if not (is_idle or keep_cache):
            # Apart from the update, so that it can be tried again: SGLang refuses it for a moment after a
            # response, and an update that it is part of fails with it, weights swapped.
            checks.append(client.flush_cache())
        await together(checks)
        if not is_idle:
            await client.resume()

    async def directory(self, location: WeightsLocation) -> str:
        return location.directory

    async def _send(self, client: EngineClient, location: WeightsLocation) -> Mapping[str, str]:
        """The paused engine takes the weights up; its cache is left alone. Their checksums."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class DiskPublisher(FilePublisher):
    """A whole model directory, for any engine that sees `root`."""

    model_path: Path

    def write(
        self, tensors: Iterable[tuple[str, Tensor]], version: int, *, whole: bool = False
    ) -> WeightsLocation:
        return write_version(
            self.root, tensors, version, dtype=self.dtype, fp8=self.fp8, model_path=self.model_path
        )

    async def _send(self, client: EngineClient, location: WeightsLocation) -> Mapping[str, str]:
        await client.update_from_disk(location.directory, location.version, flush=False)
        return location.checksums


async def verify_by_reload(
    publisher: Publisher, client: EngineClient, location: WeightsLocation, model_path: Path
) -> None:
    """Raises StaleWeightsError unless the engine's tensors are those that it makes of `location` itself.

    SGLang fuses and shards what it is given, so that only its own checksums of the same weights, loaded from
    files by its own loader, tell whether a publication has arrived whole. Requests wait meanwhile. Nothing is
    done where each publication is compared tensor by tensor (`verify`). `model_path`: config and tokenizer.
    """
    if (await client.capabilities()).tensor_checksums:
        return
    await client.pause("retract")
    held = await client.checksums()  # before the reload, which replaces what was published
    directory = await publisher.directory(location)
    # The directory may hold the weights alone, and the engine's own loader wants a whole model.
    await asyncio.to_thread(copy_side_files, model_path, Path(directory))
    await client.update_from_disk(directory, location.version, flush=False)
    await client.flush_cache()
    fresh = await client.checksums()
    await client.resume()
    if wrong := sorted(name for name in held.keys() | fresh.keys() if held.get(name) != fresh.get(name)):
        raise StaleWeightsError(
            f"The engine at {client.url} held a {wrong[0]!r} that differs from version {location.version} "
            f"as it loads it from disk ({len(wrong)} of {len(fresh)} tensors do)."
        )


async def verify(client: EngineClient, location: WeightsLocation) -> None:
    """Raises StaleWeightsError unless the engine's version, and tensors where it tells, are `location`'s."""
    asked: tuple[Coroutine[Any, Any, Any], ...] = (client.weight_version(), _told_checksums(client))
    version, held = await together(asked)
    if version != location.version:
        raise StaleWeightsError(
            f"The engine at {client.url} has weights of version {version}; published was {location.version}."
        )
    if held is None:
        return
    for name, value in location.checksums.items():
        # A tied matrix goes by one name in the engine: its content counts.
        if held.get(name, value) != value or (name not in held and value not in held.values()):
            raise StaleWeightsError(
                f"The engine at {client.url} holds a {name!r} that is not the trainer's (version {version})."
            )
    if missing := sorted(set(held) - set(location.checksums)):
        raise StaleWeightsError(
            f"The engine at {client.url} holds {missing[0]!r}, which version {version} did not publish."
        )


async def _told_checksums(client: EngineClient) -> Mapping[str, str] | None:
    """Of the engine's tensors, by name; None: it tells none."""
    return await client.checksums() if (await client.capabilities()).tensor_checksums else None
