"""`sglang`: how its server is started, and how weights reach it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rlcore import (
    DTYPE_NAMES,
    ROUTED_EXPERTS,
    TOKEN_VARIABLE,
    ConfigError,
    Engine,
    EngineLaunch,
    Overlay,
    ServerCommand,
    flag_name,
)
from rlcore_sglang import adapters, cpu, fields as server_fields, heads, launch_server, models
from rlcore_sglang.config import (
    BOOTSTRAP_PORT,
    DECODE,
    DISAGGREGATES,
    PREFILL,
    SPECULATES,
    SglangConfig,
)
from rlcore_toolkit import (
    MB,
    cross_host_ways,
    has_gpu_here,
    publisher_of,
    publisher_room,
    stay_on,
)

if TYPE_CHECKING:  # it imports torch, which takes longer than a plan
    from rlcore import Publisher

CLASSIFIER = {"is_embedding": True}
"""ServerArgs of a sequence classifier."""
FIRST_BOOTSTRAP_PORT = 8998
"""SGLang's own default: where servers that prefill tell others how to fetch what they have made."""
SHARE = 0.4
SHARED_GPU = {"mem_fraction_static": SHARE, "enable_memory_saver": True}
"""ServerArgs of an engine beside a trainer: SGLang would take nearly all, and give nothing back."""


class SglangEngine(Engine[SglangConfig]):
    """`sglang`: the real server, on GPUs, or on a CPU by the help of `rlcore_sglang.cpu`."""

    name = "sglang"
    takes_overlays = True
    takes_policies = True
    client = "rlcore_sglang.client:SglangClient"
    loads_by_transformers = False
    gpu_share = SHARE
    replay_fields: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        ROUTED_EXPERTS: {"enable_return_routed_experts": True}
    }

    def check_fields(self, fields: Mapping[str, Any], *, table: str | None = None) -> None:
        known = server_fields.server_fields(self.config.python, self._environment())
        server_fields.check_fields(fields, known, table=table or self.config.table)
        self.nodes(fields)  # asked for its ConfigError alone

    def check(self, fields: Mapping[str, Any], *, table: str | None = None) -> None:
        server_fields.require_version(self.config.python, self._environment())
        self.check_fields(fields, table=table)
        if SPECULATES in {name.replace("-", "_") for name in fields} and not has_gpu_here():
            flag = flag_name(f"{table or self.config.table}.{SPECULATES}")
            raise ConfigError(
                f"{flag}: where SGLang speculates without a GPU, it takes the likeliest token whatever the "
                "temperature; leave it out."
            )

    def check_model(self, hf_config: Mapping[str, Any]) -> None:
        models.check_model(hf_config, on_gpu=has_gpu_here())

    def check_overlay(self, overlay: Overlay, model_path: str, fields: Mapping[str, Any]) -> None:
        known = server_fields.server_fields(self.config.python, self._environment())
        server_fields.check_takes_adapters(known, self.config.publish)
        ranks = server_fields.tensor_ranks_of(fields)
        [adapter] = adapters.by_policy({"": overlay}).values()
        adapters.check_adapters(adapter, model_path, fields, ranks=ranks, on_gpu=has_gpu_here())

    def check_layout(self, fields: Mapping[str, Any], hf_config: Mapping[str, Any]) -> None:
        server_fields.check_layout(fields, hf_config)

    def command(self, launch: EngineLaunch) -> ServerCommand:
        env = self._environment()
        server_fields.require_version(self.config.python, env)
        known = server_fields.server_fields(self.config.python, env)
        given = server_fields.check_fields(launch.fields, known, table=launch.table or self.config.table)
        defaults = cpu.FIELDS if not has_gpu_here() else SHARED_GPU if launch.shares_gpu else {}
        if not has_gpu_here():
            env |= cpu.shared_cpus(self.devices(given))
        if launch.classifier:
            defaults = {**defaults, **CLASSIFIER}
            env |= heads.environment(env)
        if launch.overlays:
            where = {"on_gpu": has_gpu_here(), "shares_gpu": launch.shares_gpu}
            published = [*adapters.by_policy(launch.overlays).values()]
            fields = adapters.adapter_fields(published, launch.model_path, given, **where)
            defaults = {**defaults, **fields}
        options = {
            "--model-path": launch.model_path,
            "--host": launch.host,
            "--port": launch.port,
            "--dtype": DTYPE_NAMES[self.dtype(launch.dtype)],
            "--context-length": launch.context_length,
            "--random-seed": launch.seed,
        }
        if launch.meeting is not None:
            options |= {"--node-rank": launch.node, "--dist-init-addr": launch.meeting}
        argv = [*_flat(options), *server_fields.arguments({**defaults, **given}, known)]
        python = self.config.python or sys.executable
        return ServerCommand(
            argv=(python, "-P", launch_server.__file__, *argv),
            env={TOKEN_VARIABLE: launch.token, **env, **stay_on(_meeting_host(launch))},
        )

    def devices(self, fields: Mapping[str, Any]) -> int:
        return server_fields.ranks_of(fields) * server_fields.replicas_of(fields)

    def nodes(self, fields: Mapping[str, Any]) -> int:
        return server_fields.nodes_of(fields)

    def fields_of(self, number: int, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        given = {name.replace("-", "_"): value for name, value in fields.items()}
        if given.get(DISAGGREGATES) != PREFILL:
            return fields
        return {**given, BOOTSTRAP_PORT: int(given.get(BOOTSTRAP_PORT, FIRST_BOOTSTRAP_PORT)) + number}

    def router_role(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        role = fields.get(DISAGGREGATES)
        if role not in (PREFILL, DECODE):
            return {}
        port = {"bootstrap_port": fields[BOOTSTRAP_PORT]} if role == PREFILL else {}
        return {"worker_type": role, **port}

    def cross_host_ways(self, *, spanning: bool) -> Sequence[str]:
        return ["tensor", *cross_host_ways(["broadcast"], spanning=spanning)]

    def room(self, size: int) -> int:
        return publisher_room(self.config.publish, size, bucket_mb=self.config.bucket_mb)

    def takes_handles(self, fields: Mapping[str, Any]) -> bool:
        # SGLang counts its ranks within a stage: ranks of two stages would open the same handle
        return self.config.publish == "tensor" and server_fields.stages_of(fields) == 1

    def publisher(
        self, *, weights_dir: str, model_path: str, dtype: str, external: bool = False
    ) -> Publisher:
        config, root = self.config, Path(weights_dir)
        way = "disk" if external else config.publish
        if way in ("tensor", "disk"):
            from rlcore_sglang.publish import SglangDiskPublisher, TensorPublisher

            if way == "disk":
                return SglangDiskPublisher(root=root, dtype=self.dtype(dtype), model_path=Path(model_path))
            bucket_bytes = config.bucket_mb * MB
            return TensorPublisher(
                root=root, dtype=self.dtype(dtype), bucket_bytes=bucket_bytes, checks=False
            )
        return publisher_of(
            way,
            root,
            Path(model_path),
            self.dtype(dtype),
            bucket_mb=config.bucket_mb,
            limit_s=config.broadcast_limit_s,
            on_gpu=has_gpu_here(),
            checks=False,
        )

    def _environment(self) -> dict[str, str]:
        return self.config.environment(on_gpu=has_gpu_here())


def _meeting_host(launch: EngineLaunch) -> str:
    """The address at which the ranks of an engine meet."""
    return launch.meeting.rpartition(":")[0] if launch.meeting else launch.host


def _flat(options: Mapping[str, Any]) -> list[str]:
    return [str(item) for pair in options.items() if pair[1] is not None for item in pair]
