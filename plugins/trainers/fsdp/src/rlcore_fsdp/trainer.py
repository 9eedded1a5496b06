"""`FsdpTrainer`: what core asks of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
)
from rlcore_fsdp.config import FsdpConfig
from rlcore_toolkit import adapter_of, write_merged

if TYPE_CHECKING:
    from rlcore_fsdp.rank import FsdpRank


class FsdpTrainer:
    """Kind `trainer`. torch and transformers are imported where they are needed."""

    def __init__(self, config: FsdpConfig) -> None:
        self.config = config

    def check_fields(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """It passes no settings on."""
        return {}

    def fields(self, run: RunConfig, given: Mapping[str, Any], *, gpu: bool) -> Mapping[str, Any]:
        """None, after checking that the settings have an effect."""
        if self.config.optimizer_on_host and not gpu:
            raise ConfigError(
                "--trainer.optimizer-on-host: found true, but without a GPU the optimizer is on the host "
                "anyway; leave it out."
            )
        return {}

    def overlay(self, run: RunConfig, model: ModelSpec) -> AdapterSpec:
        """The adapter of the run, of modules that PEFT adapts. `UserError`."""
        from rlcore_fsdp.build import empty_model
        from rlcore_fsdp.lora import modules_in_memory

        spec, empty = adapter_of(run, Path(model.path)), empty_model(model.path, model.dtype)
        modules_in_memory(empty, model.path, spec)
        if self.config.quantize_base != "none":
            from rlcore_fsdp.quantized import rounding

            rounding(empty, model.path, self.config.quantize_base)
        return spec

    def join(self, meeting: Rendezvous, fields: Mapping[str, Any]) -> FsdpRank:
        """Join by gloo on a CPU, by NCCL on GPUs."""
        from rlcore_fsdp.rank import FsdpRank

        return FsdpRank(meeting, self.config)

    def to_hf(
        self,
        source: SavedWeights,
        out: Path,
        advance: ProgressCallback,
        ranks: int = 1,
        plugin_files: Sequence[PluginFile] = (),
    ) -> ConversionReport:
        """A tensor at a time, in this process; an adapter is merged into its base."""
        if (source.folder / ADAPTER_CONFIG).is_file():
            spec, base = source.spec, None
            if self.config.quantize_base != "none":
                from rlcore_fsdp.build import empty_model
                from rlcore_fsdp.quantized import rounding

                base = rounding(empty_model(spec.path, spec.dtype), spec.path, self.config.quantize_base)
            return write_merged(Path(spec.path), source.folder, out, spec.dtype, advance, base_weight=base)
        from rlcore_fsdp.convert import to_hf

        return to_hf(source, out, advance)
