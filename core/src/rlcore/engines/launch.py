"""What core asks of an engine, and what it says of a server that it wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from rlcore.engines.config import EngineConfig

if TYPE_CHECKING:
    from rlcore.engines.publish import Publisher

TOKEN_VARIABLE = "RLCORE_ENGINE_TOKEN"
TABLE = "sglang"


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
    table: str = TABLE


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
    def config(self) -> EngineConfig:
        """Its settings."""
        ...

    @property
    def routing_fields(self) -> Mapping[str, Any] | None:
        """Fields that make the server give the experts that it chose; None: it cannot."""
        ...

    @property
    def loads_by_transformers(self) -> bool:
        """Whether transformers knows the shapes of every model that the server loads."""
        ...

    @property
    def copies(self) -> int:
        """Whole versions of the weights that its publisher's folder holds at most."""
        ...

    def check_fields(self, fields: Mapping[str, Any], *, table: str = TABLE) -> None:
        """A UserError where `fields` of `table` are not its own, whether or not the engine is installed."""
        ...

    def check(self, fields: Mapping[str, Any], *, table: str = TABLE) -> None:
        """Before any process starts: a UserError where the engine is missing or `fields` are not its own."""
        ...

    def check_model(self, hf_config: Mapping[str, Any]) -> None:
        """A UserError where the server could not load a model of this config.json."""
        ...

    def command(self, launch: EngineLaunch) -> Command:
        """The server's command. Raises as `check` does."""
        ...

    def devices(self, fields: Mapping[str, Any]) -> int:
        """GPUs of one engine whose server has `fields`, where there are any; 0: it computes on the CPU."""
        ...

    def nodes(self, fields: Mapping[str, Any]) -> int:
        """Hosts, or parts of one, that share an engine, with a server process on each. Raises as `check`."""
        ...

    def far_ways(self, *, spanning: bool) -> Sequence[str]:
        """Those of `--engine.publish` that reach it on another host; `spanning`: on several."""
        ...

    def dtype(self, run_dtype: str) -> str:
        """The precision of the engine's weights."""
        ...

    def publisher(self, *, weights_dir: str, model_path: str, dtype: str) -> Publisher:
        """The way of new weights into the server; `dtype` is the run's."""
        ...
