"""Publication of weights: a train worker writes a version, each engine loads it and is checked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from rlcore.api.errors import StaleWeightsError
from rlcore.engines.client import EngineClient, together
from rlcore.engines.publish_file import WeightsLocation, copy_side_files, tensor_layout, write_version


class Publisher(Protocol):
    """One way for weights from trainer to engine. Small and picklable: both sides have a copy."""

    def write(
        self, tensors: Iterable[tuple[str, Tensor]], version: int, *, whole: bool = False
    ) -> WeightsLocation:
        """In the train worker: stores all weights, by Hugging Face name, as `version`.

        `whole`: so that nothing which was written before is needed to load it.
        """
        ...

    async def load(
        self, client: EngineClient, location: WeightsLocation, *, keep_cache: bool = False
    ) -> None:
        """In the driver: one engine takes the weights up; requests under way go on with them.

        `keep_cache`: with the keys and values that the old weights made, where they otherwise are computed
        anew. Raises EngineError where the engine fails, and then leaves it paused; StaleWeightsError where it
        reports another version or, if it is asked for checksums, a tensor that is not the trainer's;
        DeltaError where it has to be written whole.
        """
        ...

    async def directory(self, location: WeightsLocation) -> str:
        """In the driver: a folder with the whole of `location` as `model.safetensors`."""
        ...


@dataclass(frozen=True, kw_only=True)
class FilePublisher:
    """What most ways have in common: a folder that trainer and engine both see, and the engine's dtype."""

    root: Path
    dtype: str

    def write(
        self, tensors: Iterable[tuple[str, Tensor]], version: int, *, whole: bool = False
    ) -> WeightsLocation:
        return write_version(self.root, tensors, version, dtype=self.dtype)

    async def load(
        self, client: EngineClient, location: WeightsLocation, *, keep_cache: bool = False
    ) -> None:
        # Retracted requests compute their prefixes anew, so no cache of the old weights is left behind.
        await client.pause("in_place" if keep_cache else "retract")
        await self._send(client, location)
        if not keep_cache:
            # Apart from the update, so that it can be tried again: SGLang refuses it for a moment after a
            # response, and an update that it is part of fails with it, weights swapped.
            await client.flush_cache()
        await verify(client, location)
        await client.resume()

    async def directory(self, location: WeightsLocation) -> str:
        return location.directory

    async def _send(self, client: EngineClient, location: WeightsLocation) -> None:
        """The paused engine takes the weights up; its cache is left alone."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SharedMemoryPublisher(FilePublisher):
    """For `local` on the trainer's host: the server maps the file."""

    async def _send(self, client: EngineClient, location: WeightsLocation) -> None:
        await client.update_from_shared_memory(
            location.file, tensor_layout(location.file), location.version, flush=False
        )


@dataclass(frozen=True, kw_only=True)
class DiskPublisher(FilePublisher):
    """For any engine that sees `root`: a whole model directory."""

    model_path: Path

    def write(
        self, tensors: Iterable[tuple[str, Tensor]], version: int, *, whole: bool = False
    ) -> WeightsLocation:
        return write_version(self.root, tensors, version, dtype=self.dtype, model_path=self.model_path)

    async def _send(self, client: EngineClient, location: WeightsLocation) -> None:
        await client.update_from_disk(location.directory, location.version, flush=False)


async def publish(
    publisher: Publisher,
    clients: Sequence[EngineClient],
    tensors: Iterable[tuple[str, Tensor]],
    version: int,
    *,
    keep_cache: bool = False,
) -> WeightsLocation:
    """Writes and loads in one process."""
    location = await asyncio.to_thread(publisher.write, tensors, version)
    await load_all(publisher, clients, location, keep_cache=keep_cache)
    return location


async def load_all(
    publisher: Publisher,
    clients: Sequence[EngineClient],
    location: WeightsLocation,
    *,
    keep_cache: bool = False,
) -> None:
    """All engines load `location` at once; the first failure is raised."""
    await together(publisher.load(client, location, keep_cache=keep_cache) for client in clients)


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
    held = await client.checksums()
    directory = await publisher.directory(location)
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
    version = await client.weight_version()
    if version != location.version:
        raise StaleWeightsError(
            f"The engine at {client.url} has weights of version {version}; published was {location.version}."
        )
    if not (await client.capabilities()).tensor_checksums:
        return
    held = await client.checksums()
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
