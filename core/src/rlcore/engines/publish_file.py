"""Weights on their way: where a version lies, and the form in which engines hold it."""

import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from rlcore.api.overlay import Overlay
from rlcore.api.types import parse_json
from rlcore.engines.stream import Piece, WeightStream
from rlcore.weights.fp8_config import FP8_SCALE_SUFFIX, Fp8Block, fp8_block
from rlcore.weights.weights_check import shapes_in

FILE = "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class Fp8Weights:
    """The weights that engines hold in FP8: `names`, with a scale for each `block`.

    `ue8m0`: scales are powers of two.
    """

    block: Fp8Block
    names: frozenset[str]
    ue8m0: bool = False

    @classmethod
    def of(cls, model_path: Path) -> "Fp8Weights | None":
        """Those of a Hugging Face directory: all that have scales in its files. None: its config has no FP8.

        The files say it, not a rule about names: embeddings, norms, routers, the output head and whatever
        else the publisher left full stay so, whatever they are called.
        """
        how = parse_json((model_path / "config.json").read_text()).get("quantization_config")
        block = fp8_block(how)
        if block is None:
            return None
        names = shapes_in(model_path).keys()
        return cls(
            block=block,
            names=frozenset(name for name in names if name + FP8_SCALE_SUFFIX in names),
            ue8m0=how.get("scale_fmt") == "ue8m0",
        )


@dataclass(frozen=True, kw_only=True)
class WeightsLocation:
    """Where the weights of one version lie, and what they are. Travels from the train worker to the driver.

    `directory`, named by a version, holds the `model.safetensors` of that version, and config and tokenizer
    if they were asked for. `chain`: files of changes that turn it into `version`, the oldest first; empty if
    the directory already is `version`. `stream`: the source in the driver, for weights that come from the
    trainer's memory; `pieces`: those of the stream, for the engine that loads them. `checksums`: Hugging Face
    name → `rlcore.checksum` of the values as written.
    """

    directory: str
    version: int
    checksums: Mapping[str, str]
    chain: tuple[str, ...] = ()
    stream: WeightStream | None = field(default=None, compare=False)
    pieces: AsyncIterator[Piece] | None = field(default=None, compare=False)

    @property
    def file(self) -> str:
        """The safetensors file."""
        return str(Path(self.directory) / FILE)


@dataclass(frozen=True, kw_only=True)
class WeightForms:
    """The weights that engines hold in another form than their dtype.

    `fp32`: how the names end of those that are fp32 in every engine (`ModelFamily.fp32_weights`). `overlays`:
    the only weights that come, as `EngineLaunch.overlays`; their names say their policies
    (`rlcore.policy_tensor`).
    """

    fp8: Fp8Weights | None = None
    fp32: tuple[str, ...] = ()
    overlays: Mapping[str, Overlay] = field(default_factory=dict)

    def dtype_of(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which the engine, whose own is `dtype`, wants the tensor `name`."""
        return torch.float32 if name.endswith(self.fp32) else dtype


def copy_side_files(model_path: Path, target: Path) -> None:
    """Copy config and tokenizer of `model_path`, so that `target` can be loaded as a model."""
    for file in model_path.iterdir():
        if file.suffix in (".json", ".jinja", ".txt", ".model") and not file.name.endswith(".index.json"):
            shutil.copyfile(file, target / file.name)
