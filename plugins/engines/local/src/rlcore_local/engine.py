"""`local`: how its server is started, and how weights reach it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rlcore import (
    CLASSIFIER_HEAD,
    INDEXER_TOPK,
    ROUTED_EXPERTS,
    TOKEN_VARIABLE,
    ConfigError,
    Engine,
    EngineLaunch,
    ModelError,
    ServerCommand,
    classifier_of,
)
from rlcore_local.config import LocalConfig
from rlcore_toolkit import cross_host_ways, is_decoder, publisher_of, publisher_room

if TYPE_CHECKING:  # it imports torch, which takes longer than a plan
    from rlcore import Publisher


class LocalEngine(Engine[LocalConfig]):
    """`local`: the server over transformers, the default without a GPU, or without SGLang."""

    name = "local"
    takes_overlays = True
    takes_policies = True
    client = "rlcore_local.client:LocalClient"
    replay_fields: ClassVar[Mapping[str, Mapping[str, Any]]] = {ROUTED_EXPERTS: {}, INDEXER_TOPK: {}}
    stays_on_cpu = "--engine.device cpu"

    def check(self, fields: Mapping[str, Any], *, table: str | None = None) -> None:
        super().check(fields, table=table)
        if self.config.device == "cuda":
            import torch

            if not torch.cuda.is_available():
                raise ConfigError(
                    "--engine.device: found cuda, but torch finds no GPU here; use cpu or auto."
                )

    def check_model(self, hf_config: Mapping[str, Any]) -> None:
        """Any that transformers loads, as the trainer's bridge does."""
        classifier = classifier_of(hf_config)
        if classifier is not None and not is_decoder(classifier):
            raise ModelError(
                f"--engine local: found a {classifier}, but of reward models it serves transformers' "
                f"decoders (Qwen3{CLASSIFIER_HEAD}, …)."
            )

    def command(self, launch: EngineLaunch) -> ServerCommand:
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
            "--device": self.config.device,
            "--threads": threads,
            "--weights-dir": launch.weights_dir,
        }
        argv = (sys.executable, "-P", "-m", "rlcore_local", *_flat(options))
        # Trainer and engine take turns on the same cores: who waits spins for microseconds only.
        openmp = {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "1500"}
        return ServerCommand(argv=argv, env={TOKEN_VARIABLE: launch.token, **openmp})

    def devices(self, fields: Mapping[str, Any]) -> int:
        return int(self.config.device != "cpu")

    def cross_host_ways(self, *, spanning: bool) -> Sequence[str]:
        return cross_host_ways(["broadcast"], spanning=spanning)

    def room(self, size: int) -> int:
        return publisher_room(self.config.publish, size, bucket_mb=self.config.bucket_mb)

    def publisher(
        self, *, weights_dir: str, model_path: str, dtype: str, external: bool = False
    ) -> Publisher:
        config, root = self.config, Path(weights_dir)
        way = "disk" if external else config.publish
        return publisher_of(
            way,
            root,
            Path(model_path),
            self.dtype(dtype),
            bucket_mb=config.bucket_mb,
            limit_s=config.broadcast_limit_s,
            on_gpu=False,
        )


def _flat(options: Mapping[str, Any]) -> list[str]:
    return [str(item) for pair in options.items() if pair[1] is not None for item in pair]
