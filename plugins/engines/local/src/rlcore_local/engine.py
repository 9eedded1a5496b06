"""`local`: how its server is started, and how weights reach it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlcore.engines import ways
from rlcore.engines.classifiers import CLASSIFIER_HEAD, SGLANG_CLASSIFIERS, classifier_of, is_decoder
from rlcore.engines.launch import TABLE, TOKEN_VARIABLE, Command, EngineLaunch
from rlcore.errors import ConfigError, ModelError
from rlcore_local.config import LocalConfig

if TYPE_CHECKING:
    from rlcore.engines.publish import Publisher


class LocalEngine:
    """`local`: the server over transformers, the default without a GPU."""

    name = "local"
    loads_by_transformers = True
    routing_fields: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, config: LocalConfig) -> None:
        self.config = config

    @property
    def copies(self) -> int:
        return ways.copies(self.config.publish)

    def check_fields(self, fields: Mapping[str, Any], *, table: str = TABLE) -> None:
        for name in fields:
            raise ConfigError(f"--{table}.{name} has no effect with --engine local.")

    def check(self, fields: Mapping[str, Any], *, table: str = TABLE) -> None:
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
        argv = (sys.executable, "-P", "-m", "rlcore_local", *_flat(options))
        # Trainer and engine take turns on the same cores: who waits spins for microseconds only.
        openmp = {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "1500"}
        return Command(argv=argv, env={TOKEN_VARIABLE: launch.token, **openmp})

    def dtype(self, run_dtype: str) -> str:
        return self.config.dtype or run_dtype

    def devices(self, fields: Mapping[str, Any]) -> int:
        return 0

    def nodes(self, fields: Mapping[str, Any]) -> int:
        return 1

    def far_ways(self, *, spanning: bool) -> Sequence[str]:
        return ways.far_ways(["broadcast"], spanning=spanning)

    def publisher(self, *, weights_dir: str, model_path: str, dtype: str) -> Publisher:
        config, root = self.config, Path(weights_dir)
        return ways.publisher_of(
            config.publish,
            root,
            Path(model_path),
            self.dtype(dtype),
            bucket_mb=config.bucket_mb,
            limit_s=config.broadcast_limit_s,
            on_gpu=False,
        )


def _flat(options: Mapping[str, Any]) -> list[str]:
    return [str(item) for pair in options.items() if pair[1] is not None for item in pair]
