"""`MegatronTrainer`: what core asks of this package."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlcore import (
    ADAPTER_CONFIG,
    AdapterSpec,
    ConfigError,
    ConversionReport,
    ModelSpec,
    PluginFile,
    ProgressCallback,
    Rendezvous,
    RunConfig,
    SavedWeights,
    TrainerRank,
)
from rlcore_megatron.config import MegatronConfig
from rlcore_megatron.fields import RECOMPUTE, check_fields
from rlcore_toolkit import adapter_of, write_merged


class MegatronTrainer:
    """Kind `trainer`. megatron-core is imported where it is needed, not before."""

    def __init__(self, config: MegatronConfig) -> None:
        self.config = config

    def check_fields(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fields of megatron-core's config classes, in their types."""
        return check_fields(given)

    def fields(self, run: RunConfig, given: Mapping[str, Any], *, gpu: bool) -> Mapping[str, Any]:
        """What was given; and on a GPU recomputation, unless something was said of it."""
        checked = self.check_fields(given)
        if run.loss.replay_routing and "moe" in (checked.get("recompute_modules") or ()):
            raise ConfigError(
                "--megatron.recompute-modules: found moe with --replay-routing, but a layer of experts that "
                "is computed again alone chooses anew; expected --megatron.recompute-granularity full."
            )
        recompute = gpu and not any(name.startswith("recompute_") for name in given)
        return {**(RECOMPUTE if recompute else {}), **checked}

    def overlay(self, run: RunConfig, model: ModelSpec) -> AdapterSpec:
        return adapter_of(run, Path(model.path))

    def join(self, meeting: Rendezvous, fields: Mapping[str, Any]) -> TrainerRank:
        """Makes megatron-core importable in this process, too."""
        from rlcore_megatron.mcore.rank import join

        return join(meeting, fields)

    def to_hf(
        self,
        source: SavedWeights,
        out: Path,
        advance: ProgressCallback,
        ranks: int = 1,
        plugin_files: Sequence[PluginFile] = (),
    ) -> ConversionReport:
        """One tensor at a time; an adapter is merged into its base."""
        if (source.folder / ADAPTER_CONFIG).is_file():
            return write_merged(Path(source.spec.path), source.folder, out, source.spec.dtype, advance)
        from rlcore_megatron.convert import to_hf

        return to_hf(source, out, advance, ranks=ranks, plugin_files=plugin_files)

    def from_hf(
        self,
        spec: ModelSpec,
        out: Path,
        advance: ProgressCallback,
        ranks: int = 1,
        plugin_files: Sequence[PluginFile] = (),
    ) -> ConversionReport:
        """Converts to `torch_dist`."""
        from rlcore_megatron.convert import to_dist

        return to_dist(spec, out, advance, ranks, plugin_files)

    def weights_in(self, path: Path) -> Path | None:
        from rlcore_megatron.convert import WEIGHTS, is_dist

        return path / WEIGHTS if is_dist(path) else None
