"""`Engine`, the base class of kind `engine`: how servers are started and asked, and how they get weights."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from typing_extensions import TypeVar

from rlcore.api.engine import EngineLaunch, ServerCommand
from rlcore.api.errors import ConfigError
from rlcore.api.overlay import Overlay
from rlcore.api.part_config import EngineConfig

if TYPE_CHECKING:  # it imports torch
    from rlcore.engines.publish import Publisher

C = TypeVar("C", bound=EngineConfig, default=EngineConfig, covariant=True)


class Engine(Generic[C]):
    """Kind `engine`: how servers of one kind are started, asked and given weights. Derive from it.

    rlcore makes one from its config in the driver and one beside each server, so its module should import
    fast. The defaults suit a server on the CPU that takes no fields of its own and speaks the protocol of
    `rlcore.EngineClient`. Such an engine needs a `name`, a `command`, a `publisher` and its `room`;
    `rlcore new engine NAME` writes one, with its server.

    Before a run, in the driver: `check`, `check_model`, `check_overlay`, `check_layout`, `devices`, `nodes`.
    For each engine, in the driver: `fields_of`. For each start of a server, on its host: `command`; then
    rlcore asks `health` until it answers 200. For each publication: the `publisher`. A server that ends, or
    does not answer, is replaced by a new one.

        >>> import sys
        >>> from rlcore import TOKEN_VARIABLE, Engine, EngineLaunch, ServerCommand
        >>> class MyEngine(Engine):
        ...     name = "mine"
        ...     takes_weights_under_way = False
        ...     def command(self, launch: EngineLaunch) -> ServerCommand:
        ...         self.check(launch.fields, table=launch.table)
        ...         place = ("--host", launch.host, "--port", str(launch.port))
        ...         argv = (sys.executable, "-m", "my_server", launch.model_path, *place)
        ...         return ServerCommand(argv=argv, env={TOKEN_VARIABLE: launch.token})
    """

    name: ClassVar[str]
    """`--engine`."""
    client: ClassVar[str] = "rlcore.engines.client:EngineClient"
    """The factory of the client for its servers: `rlcore.EngineClient`, or a class that derives from it."""
    health: ClassVar[str] = "/health"
    """The path that answers 200 once the server is ready."""
    replay_fields: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Column of what the server chose (`rlcore.ROUTED_EXPERTS`, …) → its fields that make it return that."""
    loads_by_transformers: ClassVar[bool] = True
    """Whether transformers knows every model that the server loads."""
    gives_log_probs: ClassVar[bool] = True
    """Whether it returns the log-prob of each token that it samples."""
    aborts: ClassVar[bool] = True
    """Whether it ends a request that is under way, and gives what was sampled."""
    takes_weights_under_way: ClassVar[bool] = True
    """Whether requests in progress can go on with new weights."""
    releases_memory: ClassVar[bool] = True
    """Whether its servers can free the devices' memory while a trainer works."""
    takes_overlays: ClassVar[bool] = False
    """Whether it adds a published overlay to the weights that it loaded (`EngineLaunch.overlays`)."""
    takes_policies: ClassVar[bool] = False
    """Whether it takes those of several policies at once, of which each request names one."""
    gpu_share: ClassVar[float | None] = None
    """The share of a GPU's memory that its server takes beside a trainer by default; None: what is left."""
    stays_on_cpu: ClassVar[str] = ""
    """The flag, with its value, that keeps its servers off the GPUs, for a refusal where there are too few;
    empty: there is none.
    """
    serves_frozen: ClassVar[bool] = True
    """Whether it serves frozen models: chats, and log-probs of a text."""

    def __init__(self, config: C) -> None:
        self.config = config

    def command(self, launch: EngineLaunch) -> ServerCommand:
        """The server's command, for each start of a server. It starts nothing itself. Raises as `check`."""
        raise NotImplementedError

    def check_fields(self, fields: Mapping[str, Any], *, table: str | None = None) -> None:
        """A UserError if the server has no such fields. Must work where the server is not installed.

        `table`: the user's table that they stand in, for the sentence; None: the engine's own.
        """
        for name in fields:
            raise ConfigError(
                f"--{table or self.config.table}.{name} has no effect with --engine {self.name}."
            )

    def check(self, fields: Mapping[str, Any], *, table: str | None = None) -> None:
        """Called before any process starts: a UserError if the engine is not installed or `fields` are
        wrong.
        """
        self.check_fields(fields, table=table)

    def check_model(self, hf_config: Mapping[str, Any]) -> None:
        """A UserError if the server cannot load a model of this config.json."""

    def check_overlay(self, overlay: Overlay, model_path: str, fields: Mapping[str, Any]) -> None:
        """A UserError if a server with `fields` cannot add this overlay to the model in `model_path`.

        rlcore asks an engine that `takes_overlays`, before a run that publishes one starts.
        """

    def check_layout(self, fields: Mapping[str, Any], hf_config: Mapping[str, Any]) -> None:
        """A UserError if the GPUs of one engine with `fields` cannot divide the model of this config.json.

        rlcore asks for a run on GPUs, before it starts, in a dry run and in a plan. Must work where the
        server is not installed.
        """

    def devices(self, fields: Mapping[str, Any]) -> int:
        """How many GPUs one engine with `fields` takes on a machine with GPUs; 0: it computes on the CPU."""
        return 0

    def nodes(self, fields: Mapping[str, Any]) -> int:
        """How many server processes make up one engine with `fields`, each with its own GPUs.

        Raises as `check`.
        """
        return 1

    def fields_of(self, number: int, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """`fields` for engine `number`, where each engine needs a value of its own, such as a port."""
        return fields

    def router_role(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the router must know of a server beside its URL, such as `worker_type`; empty: nothing."""
        return {}

    def dtype(self, run_dtype: str) -> str:
        """The precision of the engine's weights."""
        return self.config.dtype or run_dtype

    def publisher(
        self, *, weights_dir: str, model_path: str, dtype: str, external: bool = False
    ) -> "Publisher":
        """Brings new weights into the servers; `rlcore_toolkit.publisher_of` knows several ways.

        `weights_dir`: the run's folder of publications. `model_path`: of the model's config and tokenizer.
        `dtype`: the run's. `external`: somebody else started the servers, which read whole model directories
        and nothing else (`rlcore_toolkit.DiskPublisher`).
        """
        raise NotImplementedError

    def cross_host_ways(self, *, spanning: bool) -> Sequence[str]:
        """The values of `--engine.publish` that reach a server on another host; `spanning`: an engine on
        several.
        """
        return ()

    def takes_handles(self, fields: Mapping[str, Any]) -> bool:
        """Whether each rank of an engine with `fields` takes weights by a handle to memory of its device."""
        return False

    def room(self, size: int) -> int:
        """The most bytes that its publisher's folder holds, for weights of `size` bytes."""
        raise NotImplementedError
