"""Publication of weights: a train worker writes a version, each engine loads it and is checked."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import Tensor

from rlcore.api.errors import StaleWeightsError
from rlcore.engines.client import EngineClient
from rlcore.engines.publish_file import WeightForms, WeightsLocation, copy_side_files
from rlcore.engines.stream import Piece

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
        """For each rank of one engine, the train rank on its device (`beside`); empty: none is."""

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

    def beside(self, sources: Sequence[int]) -> "Publisher":
        """In the driver: the same for one engine, which has these `sources`."""

    def feeding(self, readers: int) -> "Publisher":
        """For a train worker: the same, with that many ranks of engines on the worker's device that take
        weights from it.
        """

    def holding(self, forms: WeightForms) -> "Publisher":
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


async def verify_by_reload(
    publisher: Publisher, client: EngineClient, location: WeightsLocation, model_path: Path
) -> None:
    """Raises StaleWeightsError unless the engine's tensors are those that it makes of `location` itself.

    An engine may fuse and shard what it is given. Then only its own checksums of the same weights, loaded
    from files by its own loader, tell whether a publication has arrived whole. Requests wait meanwhile.
    Nothing is done where `verify_weights` compares each publication tensor by tensor. `model_path`: of config
    and tokenizer.
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


async def verify_weights(client: EngineClient, location: WeightsLocation) -> None:
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
