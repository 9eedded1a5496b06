"""`--engine.*` of `sglang`."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from rlcore import Diagnosis, EngineConfig, RunConfig, absolute_path
from rlcore_toolkit import SGLANG_ROUTERS, has_gpu_here

SPECULATES = "speculative_algorithm"
DISAGGREGATES, PREFILL, DECODE = "disaggregation_mode", "prefill", "decode"
BOOTSTRAP_PORT = "disaggregation_bootstrap_port"
QUANTIZES, RELOADS = "quantization", "flash_rl"
"""Full weights that SGLang quantizes as it loads them. Without that load format it does so once (0.5.23)."""
_THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
_OWN_DRAFT = ("speculative_draft_model_path", "speculative_draft_model")


class SglangConfig(EngineConfig):
    """`--engine.*` of the real SGLang server. ServerArgs have their own table, `--sglang.<field>`."""

    table: ClassVar[str] = "sglang"
    fields_of: ClassVar[str] = "SGLang's ServerArgs"
    synonyms: ClassVar[Mapping[str, str]] = {"tp_size": "tp_size"}
    routers = SGLANG_ROUTERS

    python: str | None = Field(
        default=None,
        description="the Python interpreter that has sglang installed; none: this one",
    )
    publish: Literal["disk", "delta", "tensor", "broadcast"] = Field(
        default="disk",
        description="how new weights reach the server; disk: as a directory; delta: as a file of what has "
        "changed; tensor: by handle to the trainer's memory on the same device, else over HTTP; broadcast: "
        "by NCCL or gloo",
    )
    bucket_mb: int = Field(
        default=256,
        ge=1,
        le=1024,
        description="megabytes of weights that travel at the same time, with tensor and broadcast",
    )
    broadcast_limit_s: float = Field(
        default=120.0,
        gt=0,
        description="seconds that trainer and server may take to meet for broadcasts, and for each bucket",
    )
    threads: int = Field(default=1, ge=1, description="threads of each server process on a CPU")
    start_limit_s: float = Field(
        default=600.0, gt=0, description="seconds that the server may take until it answers"
    )
    stop_grace_s: float = Field(
        default=15.0, ge=0, description="seconds from SIGTERM to SIGKILL at its end; 0: no SIGTERM reaches it"
    )

    def environment(self, *, on_gpu: bool) -> dict[str, str]:
        """What the interpreter needs in its environment, to import SGLang and to serve."""
        from rlcore_sglang import cpu

        return {} if on_gpu else cpu.environment(self.python, threads=self.threads)

    def diagnose(self) -> Iterable[Diagnosis]:
        """Where SGLang is, and whether its version is supported."""
        from rlcore_sglang.fields import SUPPORTED, require_version

        env = self.environment(on_gpu=has_gpu_here())
        version = f"sglang {require_version(self.python, env)} of {self.python or sys.executable}"
        yield Diagnosis(what="version", found=f"{version}; supported is {SUPPORTED}")

    @field_validator("python")
    @classmethod
    def _absolute(cls, python: str | None) -> str | None:
        """A name without a folder is looked up in PATH, as a shell does."""
        return absolute_path(python) if python and "/" in python else python

    def _of_replicas(self, fields: Mapping[str, Any]) -> Iterable[str]:
        from rlcore_sglang.fields import replicas_of

        if self.publish in ("tensor", "broadcast") and (each := replicas_of(fields)) > 1:
            yield (
                f"--engine.publish: found {self.publish}, by which SGLang takes new weights into one replica "
                f"alone, and each engine has {each}; use --engine.publish disk, more --engines instead of "
                "--sglang.dp-size, or --sglang.enable-dp-attention true."
            )

    def _of_adapters(self, run: RunConfig, given: Mapping[str, Any]) -> Iterable[str]:
        """Objections to adapters that no request names, and to ways in which SGLang takes none."""
        from rlcore_sglang.adapters import PATHS, POLICY, named_adapters
        from rlcore_sglang.fields import number_of

        if run.lora.publish != "adapter":
            if PATHS in given:
                yield (
                    f"--sglang.lora-paths: found {given[PATHS]}, but engines get whole weights, and adapters "
                    "are of the base; add --lora.publish adapter, or leave it out."
                )
            return
        if self.publish not in ("disk", "tensor"):
            yield (
                f"--engine.publish: found {self.publish}, by which SGLang takes whole weights alone; with "
                "--lora.publish adapter expected disk or tensor."
            )
        if taken := run.policies.keys() & {POLICY, *named_adapters(given)}:
            yield f"--policy.{min(taken)}: SGLang has another adapter of that name; choose another."
        if (replicas := number_of(given, "dp_size")) > 1:
            yield (
                f"--sglang.dp-size: found {replicas}, but SGLang takes an adapter into one replica alone; "
                "leave it out, or take --lora.publish merged."
            )
        asynchrony = run.asynchrony
        if asynchrony.is_asynchronous and asynchrony.on_publish not in ("wait", "abort"):
            yield (
                f"--on-publish: found {asynchrony.on_publish}, but SGLang ends a request with the adapter "
                "that it began with; with --lora.publish adapter expected wait or abort."
            )
        if run.serving.check_weights_every:
            yield (
                f"--check-weights-every: found {run.serving.check_weights_every}, but publications carry an "
                "adapter, which a probe proves each time; leave it out."
            )

    def complaints(self, run: RunConfig, fields: Mapping[str, Any]) -> Iterable[str]:
        """Objections to roles that nobody would ask, and to drafts that change the distribution.

        SGLang 0.5.12 to 0.5.23 load every publication into the draft too. The policy's own layers for
        multi-token prediction take what is theirs; of another model they would take what fits by its name.
        """
        given = {name.replace("-", "_"): value for name, value in fields.items()}
        if given.get(DISAGGREGATES) in (PREFILL, DECODE) and run.serving.router is None:
            yield (
                f"--sglang.{DISAGGREGATES.replace('_', '-')}: found {given[DISAGGREGATES]}, but only a "
                "router asks servers for prefill and for decode together; add --router cache_aware."
            )
        if given.get(QUANTIZES) and given.get("load_format") != RELOADS and run.debug.only != "rollout":
            yield (
                f"--sglang.{QUANTIZES}: found {given[QUANTIZES]}, but SGLang takes new weights into "
                f"quantized ones of Qwen2 and Qwen3 alone, and with --sglang.load-format {RELOADS}; add "
                f"that, or leave --sglang.{QUANTIZES} out (a --model in FP8 blocks needs neither)."
            )
        yield from self._of_replicas(fields)
        yield from self._of_adapters(run, given)
        if SPECULATES not in given:
            return
        for name in _THRESHOLDS:
            if float(given.get(name, 1.0)) < 1.0:
                yield (
                    f"--sglang.{name.replace('_', '-')}: found {given[name]}, which accepts drafts that the "
                    "policy would not sample; leave it out."
                )
        if run.sampling.min_p:
            yield (
                f"--min-p: found {run.sampling.min_p:g}, which SGLang leaves out where it speculates; leave "
                f"it out, or --sglang.{SPECULATES.replace('_', '-')}."
            )
        for name in _OWN_DRAFT:
            if name in given:
                yield (
                    f"--sglang.{name.replace('_', '-')}: found {given[name]}, but SGLang would load the "
                    "policy's weights into that draft with each publication; leave it out, so that the "
                    "model's layers for multi-token prediction draft."
                )
