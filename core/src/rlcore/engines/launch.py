"""The two engine kinds: how a server is started, and how weights reach it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from rlcore.dtypes import NAMES
from rlcore.engines import sglang_cpu, sglang_fields, sglang_heads, sglang_launch, sglang_models
from rlcore.engines.classifiers import CLASSIFIER_HEAD, SGLANG_CLASSIFIERS, classifier_of, is_decoder
from rlcore.engines.config import LocalConfig, SglangConfig
from rlcore.engines.ways import copies, publisher_of
from rlcore.errors import ConfigError, ModelError
from rlcore.network import stay_on

if TYPE_CHECKING:
    from rlcore.engines.publish import Publisher

TOKEN_VARIABLE = "RLCORE_ENGINE_TOKEN"
CLASSIFIER = {"is_embedding": True}
"""ServerArgs of a sequence classifier."""
SHARED_GPU = {"mem_fraction_static": 0.4, "enable_memory_saver": True}
"""ServerArgs of an engine beside a trainer: SGLang would take nearly all, and give nothing back."""


@dataclass(frozen=True, kw_only=True)
class EngineLaunch:
    """One server that a run wants.

    `dtype`: the run's, "fp32" or "bf16". `context_length`: most tokens of prompt and response; None: the
    model's own. `weights_dir`: where publications lie; None: there are none. `fields`: the server's own, as
    the user gave them in `table`. `token` never reaches argv. `threads`: of a train worker, for an engine
    that computes on the same CPUs. `shares_gpu`: with a trainer. `classifier`: of a sequence classifier.
    `node`: of an engine of several, whose processes meet at `meeting`, HOST:PORT of the first one.
    """

    model_path: str
    host: str
    port: int
    token: str = field(repr=False)
    dtype: str
    context_length: int | None
    seed: int
    weights_dir: str | None
    log_path: str
    threads: int = 1
    shares_gpu: bool = False
    classifier: bool = False
    node: int = 0
    meeting: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    table: str = sglang_fields.TABLE


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line, and what is added to the environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)


class Engine(Protocol):
    """Kind `engine`: made from its config. The server is a `ServerProcess`, asked by an `EngineClient`."""

    @property
    def name(self) -> str:
        """`--engine`."""
        ...

    @property
    def config(self) -> LocalConfig | SglangConfig:
        """Its settings; all kinds have `port`, `start_limit_s` and `stop_grace_s`."""
        ...

    @property
    def routing_fields(self) -> Mapping[str, Any] | None:
        """Fields that make the server give the experts that it chose; None: it cannot."""
        ...

    @property
    def copies(self) -> int:
        """Whole versions of the weights that its publisher's folder holds at most."""
        ...

    def check_fields(self, fields: Mapping[str, Any], *, table: str = sglang_fields.TABLE) -> None:
        """A UserError where `fields` of `table` are not its own, whether or not the engine is installed."""
        ...

    def check(self, fields: Mapping[str, Any], *, table: str = sglang_fields.TABLE) -> None:
        """Before any process starts: a UserError where the engine is missing or `fields` are not its own."""
        ...

    def check_model(self, hf_config: Mapping[str, Any]) -> None:
        """A UserError where the server could not load a model of this config.json."""
        ...

    def command(self, launch: EngineLaunch) -> Command:
        """The server's command. Raises as `check` does."""
        ...

    def dtype(self, run_dtype: str) -> str:
        """The precision of the engine's weights."""
        ...

    def publisher(self, *, weights_dir: str, model_path: str, dtype: str) -> Publisher:
        """The way of new weights into the server; `dtype` is the run's."""
        ...


class LocalEngine:
    """`local`: the server over transformers, the default without a GPU."""

    name = "local"
    routing_fields: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, config: LocalConfig) -> None:
        self.config = config

    @property
    def copies(self) -> int:
        return copies(self.config.publish)

    def check_fields(self, fields: Mapping[str, Any], *, table: str = sglang_fields.TABLE) -> None:
        for name in fields:
            raise ConfigError(f"--{table}.{name} has no effect with --engine local.")

    def check(self, fields: Mapping[str, Any], *, table: str = sglang_fields.TABLE) -> None:
        self.check_fields(fields, table=table)

    def check_model(self, hf_config: Mapping[str, Any]) -> None:
        """Any that transformers loads, as the trainer's bridge does."""
        found = classifier_of(hf_config)
        if found is not None and not is_decoder(found):
            also = "; take --engine sglang" if found in SGLANG_CLASSIFIERS else ""
            raise ModelError(
                f"--engine local: found a {found}, but of reward models it serves transformers' decoders "
                f"(Qwen3{CLASSIFIER_HEAD}, …){also}."
            )

    def command(self, launch: EngineLaunch) -> Command:
        self.check(launch.fields, table=launch.table)
        threads = self.config.threads or launch.threads
        options = {
            "--model-path": launch.model_path,
            "--host": launch.host,
            "--port": launch.port,
            "--dtype": self.dtype(launch.dtype),
            "--context-length": launch.context_length,
            "--max-batch": self.config.max_batch,
            "--seed": launch.seed,
            "--threads": threads,
            "--weights-dir": launch.weights_dir,
        }
        argv = (sys.executable, "-P", "-m", "rlcore.engines.local", *_flat(options))
        # Trainer and engine take turns on the same cores: who waits spins for microseconds only.
        openmp = {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "1500"}
        return Command(argv=argv, env={TOKEN_VARIABLE: launch.token, **openmp})

    def dtype(self, run_dtype: str) -> str:
        return self.config.dtype or run_dtype

    def publisher(self, *, weights_dir: str, model_path: str, dtype: str) -> Publisher:
        root, dtype = Path(weights_dir), self.dtype(dtype)
        return publisher_of(self.config, root, Path(model_path), dtype, on_gpu=False)


class SglangEngine:
    """`sglang`: the real server, on GPUs, or on a CPU by the help of `sglang_cpu`."""

    name = "sglang"
    routing_fields: Mapping[str, Any] = MappingProxyType({"enable_return_routed_experts": True})

    def __init__(self, config: SglangConfig) -> None:
        self.config = config

    @property
    def copies(self) -> int:
        return copies(self.config.publish)

    def check_fields(self, fields: Mapping[str, Any], *, table: str = sglang_fields.TABLE) -> None:
        known = sglang_fields.server_fields(self.config.python, self._environment())
        sglang_fields.check_fields(fields, known, table=table)

    def check(self, fields: Mapping[str, Any], *, table: str = sglang_fields.TABLE) -> None:
        sglang_fields.require_version(self.config.python, self._environment())
        self.check_fields(fields, table=table)

    def check_model(self, hf_config: Mapping[str, Any]) -> None:
        sglang_models.check_model(hf_config, on_gpu=_has_gpu())

    def command(self, launch: EngineLaunch) -> Command:
        env = self._environment()
        sglang_fields.require_version(self.config.python, env)
        known = sglang_fields.server_fields(self.config.python, env)
        given = sglang_fields.check_fields(launch.fields, known, table=launch.table)
        defaults = sglang_cpu.FIELDS if not _has_gpu() else SHARED_GPU if launch.shares_gpu else {}
        if not _has_gpu():
            env |= sglang_cpu.shared_cpus(
                sglang_fields.number_of(given, "dp_size") * sglang_fields.ranks_of(given)
            )
        if launch.classifier:
            defaults = {**defaults, **CLASSIFIER}
            env |= sglang_heads.environment(env)
        options = {
            "--model-path": launch.model_path,
            "--host": launch.host,
            "--port": launch.port,
            "--dtype": NAMES[self.dtype(launch.dtype)],
            "--context-length": launch.context_length,
            "--random-seed": launch.seed,
        }
        if launch.meeting is not None:
            options |= {"--node-rank": launch.node, "--dist-init-addr": launch.meeting}
        argv = [*_flat(options), *sglang_fields.arguments({**defaults, **given}, known)]
        python = self.config.python or sys.executable
        return Command(
            argv=(python, "-P", sglang_launch.__file__, *argv),
            env={TOKEN_VARIABLE: launch.token, **env, **stay_on(_meeting_host(launch))},
        )

    def dtype(self, run_dtype: str) -> str:
        return self.config.dtype or run_dtype

    def publisher(self, *, weights_dir: str, model_path: str, dtype: str) -> Publisher:
        root, dtype = Path(weights_dir), self.dtype(dtype)
        return publisher_of(self.config, root, Path(model_path), dtype, on_gpu=_has_gpu())

    def _environment(self) -> dict[str, str]:
        config = self.config
        return {} if _has_gpu() else sglang_cpu.environment(config.python, threads=config.threads)


def _meeting_host(launch: EngineLaunch) -> str:
    """The address at which the ranks of an engine meet."""
    return launch.meeting.rpartition(":")[0] if launch.meeting else launch.host


def _flat(options: Mapping[str, Any]) -> list[str]:
    return [str(item) for pair in options.items() if pair[1] is not None for item in pair]


def _has_gpu() -> bool:
    """Whether this process may use a GPU: where it may not, its server may not either."""
    import torch

    return torch.cuda.is_available()
