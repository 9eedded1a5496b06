"""Publishers that write files: a version of the weights in a folder that trainer and engine both see."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from rlcore import AskTrainer, EngineClient, Piece, Publisher, WeightForms, WeightsLocation, verify_weights
from rlcore_machine import together
from rlcore_toolkit.publishers.version import DTYPE_ALONE, write_version


@dataclass(frozen=True, kw_only=True)
class FilePublisher:
    """The base of most ways: a folder that trainer and engine both see, and the engine's dtype.

    `forms`: the weights that engines do not hold in that dtype.
    """

    is_streamed: ClassVar[bool] = False
    is_by_host: ClassVar[bool] = False

    root: Path
    dtype: str
    forms: WeightForms = DTYPE_ALONE
    sources: Sequence[int] = ()

    def beside(self, sources: Sequence[int]) -> Publisher:
        return replace(self, sources=tuple(sources)) if sources else self

    def feeding(self, readers: int) -> Publisher:
        """The same: how many read makes no difference."""
        return self

    def holding(self, forms: WeightForms) -> Publisher:
        return replace(self, forms=forms)

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
        return write_version(self.root, tensors, version, dtype=self.dtype, forms=self.forms)

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
        checks = [verify_weights(client, replace(location, checksums=checksums))]
        if not (is_idle or keep_cache):
            # Apart from the update, so that it can be tried again: a server may refuse it for a moment after
            # a response, and an update that it is part of fails with it, weights swapped.
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
            self.root, tensors, version, dtype=self.dtype, forms=self.forms, model_path=self.model_path
        )

    async def _send(self, client: EngineClient, location: WeightsLocation) -> Mapping[str, str]:
        await client.update_from_disk(location.directory, location.version, flush=False)
        return location.checksums
