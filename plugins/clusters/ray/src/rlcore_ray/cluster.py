"""A Ray of the run's own or a given one, actors placed on it, everything stopped."""

import contextlib
import functools
import logging
import os
import pickle
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from rlcore import ACTOR_THREADS, ActorThread, Bundle, CallFailed, ConfigError, RlcoreError, WorkerError
from rlcore_machine import LOOPBACK, ForkServer, Terminated
from rlcore_ray import worker_forks
from rlcore_ray.config import RayConfig
from rlcore_ray.worker_forks import WorkerForks
from rlcore_toolkit import has_gpu, watch_processes

_log = logging.getLogger(__name__)

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray hides GPUs from actors that ask for none; an engine's supervisor passes its own device list on.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    # A laptop near its limit should lose no worker to a guess; the kernel knows when memory is out.
    "RAY_memory_monitor_refresh_ms": "0",
    # Ray makes its workers nice: the trainer would yield to everything else on the machine.
    "RAY_worker_niceness": "0",
    # Logs of a local cluster are of no use after the run, and event files slow its start.
    "RAY_enable_metrics_collection": "0",
}
_OTHER_HOSTS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Unless it is 0, Ray replaces the address of the loopback by one that other hosts can reach."""
_PRESTART = "RAY_prestart_worker_first_driver"
"""Unless it is 0, `ray.init` waits for workers, and holds the interpreter: no thread can fork them."""
_MAX_SOCKET_PATH = 107
_SOCKET = "r/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store"
"""The longest path below the folder that Ray is given, as an example."""
_AUTH_MODE = "RAY_AUTH_MODE"
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_LOOPBACK_HOSTS = (LOOPBACK, "localhost", "[::1]", "::1")
_OBJECT_STORE_BYTES = 512 * 2**20
_SMALL_BYTES = 90_000
"""Ray sends what has at most 100 KiB with a call, all its arguments together, and stores the rest."""
_HEAD = ("gcs_server", "raylet")
"""The processes that a local cluster can't do without."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OF_CONSTRUCTOR = "error raised in its creation task"
"""Ray tells the error of an actor's constructor in a text that says so, as its traceback."""
_CAUSES = " Some common causes include"
"""Behind it Ray guesses, over several lines, why a process has died."""
_DEATH = "A worker died or was killed"
"""So begins what Ray prints of a process's death, which the run's error tells too."""
_START_SECONDS = 120.0
_CONNECT_SECONDS = 10.0
_JOIN_SECONDS = 300.0
"""How long a run waits for the hosts that its settings ask for."""


@dataclass(frozen=True)
class RayActor:
    """An `Actor` by its Ray handle."""

    handle: Any

    def call(self, method: str, *arguments: Any, thread: ActorThread | None = None) -> Awaitable[Any]:
        options = {"concurrency_group": thread} if thread else {}
        return _answer(getattr(self.handle, method).options(**options).remote(*arguments))

    def ask(self, method: str, *arguments: Any, limit_s: float) -> Any:
        import ray
        import ray.exceptions

        reference = getattr(self.handle, method).remote(*arguments)
        with _actor_errors():
            try:
                return ray.get(reference, timeout=limit_s)
            except ray.exceptions.GetTimeoutError:
                raise CallFailed(f"did not answer within {limit_s:g} s.") from None

    def kill(self) -> None:
        import ray

        with contextlib.suppress(Exception):  # a dead actor, or a cluster that is gone: nothing is left
            ray.kill(self.handle)


class RayCluster:
    """A `rlcore.Cluster`."""

    def __init__(self, config: RayConfig) -> None:
        self.gpus = 0
        self._address, self._hosts = config.address, config.hosts
        self._head_pids: dict[str, int] = {}
        self._forks: ForkServer | None = None
        self._until_closed = contextlib.ExitStack()

    def prepare(self, modules: Sequence[str]) -> None:
        """Start the fork server of a Ray of the run's own, which imports `modules` for all workers.

        Not where there is a GPU: a library that starts CUDA at its import would spoil it for all forks.
        """
        if self._address is None and sys.platform == "linux" and not has_gpu():
            self._forks = self._until_closed.enter_context(ForkServer(modules))

    def connect(self, *, cpus: int, gpus: int, remove: Callable[[Path], None]) -> None:
        """Starts or joins Ray. A Ray of its own has `cpus` logical CPUs: one for each actor that asks."""
        for key, value in _ENVIRONMENT.items():
            os.environ.setdefault(key, value)
        handlers = {number: signal.getsignal(number) for number in _ENDING}
        enter = self._until_closed.enter_context
        folder = enter(_local_folder(remove)) if self._address is None else None
        try:
            if self._address and self._hosts:
                _wait_for_server(self._address)
            if self._forks and folder:
                enter(contextlib.closing(WorkerForks(self._forks, folder.parent)))
            self._ray = enter(_connection(self._address, cpus, gpus, folder, forks=self._forks is not None))
        finally:
            # Ray installs handlers of its own, also where it fails; those of the run end it cleanly.
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if self._hosts:
            _wait_for_hosts(self._ray, self._hosts)
        self.gpus = int(self._ray.cluster_resources().get("GPU", 0))
        if self._address is None:  # its processes by name → pid
            children = {child.name(): child.pid for child in psutil.Process().children()}
            self._head_pids = {
                f"Ray's process {name!r}": children[name] for name in _HEAD if name in children
            }
            if self._forks:
                self._head_pids |= {"The fork server": self._forks.pid}

    def close(self) -> None:
        """Leave Ray; one of its own is shut down, with all its processes."""
        self._until_closed.close()

    def actor(self, cls: type, *arguments: Any, gpus: float, bundle: tuple[Any, int]) -> RayActor:
        """Starts an actor, which takes a CPU of its bundle."""
        where = _place_of(*bundle)
        remote = self._ray.remote(concurrency_groups=ACTOR_THREADS)(cls).options(
            num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0, scheduling_strategy=where
        )
        return RayActor(remote.remote(*arguments))

    def put(self, value: Any) -> Any:
        """Puts a value into Ray's object store, where that is faster than to send it with each call."""
        return value if _is_small(value) else self._ray.put(value)

    async def watch(self, limit_s: float) -> None:
        await watch_processes(self._head_pids, limit_s)

    def place(self, bundles: Sequence[Bundle], what: str) -> Any:
        """A placement group of `bundles`; refused at once when the cluster is too small for it."""
        from ray.util.placement_group import placement_group

        have = self._ray.cluster_resources()
        for resource in sorted({key for bundle in bundles for key in bundle}):
            need = sum(bundle.get(resource, 0) for bundle in bundles)
            if need > have.get(resource, 0):
                raise ConfigError(
                    f"{what} need {need:g} {resource}s, and the Ray cluster has {have.get(resource, 0):g}: "
                    "lower --ranks or --engines, or name a larger one by --cluster.address."
                )
        group = placement_group([dict(bundle) for bundle in bundles], strategy="PACK")
        if not group.wait(_START_SECONDS):
            raise WorkerError(f"{what} could not be placed within {_START_SECONDS:g} s: the cluster is busy.")
        return group

    @property
    def here(self) -> str:
        """The address of this process's host in the cluster."""
        from ray.util import get_node_ip_address

        return str(get_node_ip_address())

    def hosts(self, group: Any) -> list[str]:
        """The address of each bundle's host, in the order of the placement group's bundles."""
        from ray.util import placement_group_table

        host_of = {node["NodeID"]: str(node["NodeManagerAddress"]) for node in self._ray.nodes()}
        nodes = placement_group_table(group)["bundles_to_node_id"]
        return [host_of[nodes[index]] for index in range(len(nodes))]

    def devices(self, group: Any) -> list[tuple[str, ...]]:
        """Ray tells the devices to a task in each bundle, before CUDA is there."""
        task, references = self._ray.remote(_task_devices), []
        for index, bundle in enumerate(group.bundle_specs):
            gpus, where = bundle.get("GPU", 0), _place_of(group, index)
            references.append(task.options(num_cpus=1, num_gpus=gpus, scheduling_strategy=where).remote())
        try:
            with _actor_errors():
                return list(self._ray.get(references, timeout=_START_SECONDS))
        except CallFailed as error:
            raise WorkerError(f"The GPUs of the cluster cannot be numbered: a task {error}") from error


def _place_of(group: Any, index: int) -> Any:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)


def _is_small(value: Any) -> bool:
    """Whether a call carries `value` itself. The way through the object store takes 2 ms a call longer."""
    apart: list[pickle.PickleBuffer] = []  # arrays, which are not copied for this
    content = pickle.dumps(value, protocol=5, buffer_callback=apart.append)
    return len(content) + sum(buffer.raw().nbytes for buffer in apart) <= _SMALL_BYTES


@contextlib.contextmanager
def _local_folder(remove: Callable[[Path], None]) -> Iterator[Path]:
    """A folder for the sockets and logs of a local cluster, gone at the end of the run, however it ends.

    Ray lets everybody write into its own folders, so they lie in one that nobody else may enter.
    """
    folder = Path(tempfile.mkdtemp(prefix="rlcore-ray-"))
    if len(str(folder / _SOCKET)) > _MAX_SOCKET_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="rlcore-ray-", dir="/tmp"))
    remove(folder)
    try:
        yield folder / "r"
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # what Ray still writes is removed later


@contextlib.contextmanager
def _connection(
    address: str | None, cpus: int, gpus: int, folder: Path | None, *, forks: bool
) -> Iterator[Any]:
    """Connect to Ray. `folder`: where a local cluster keeps its files. `forks`: its workers are forked."""
    if address is None:
        os.environ[_OTHER_HOSTS] = "0"
        # Without a token, every user of the machine could run code here.
        os.environ.setdefault(_AUTH_MODE, "token")
        if not any(name in os.environ for name in _TOKENS):
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    else:
        _show_token(address)

    if forks:
        os.environ[_PRESTART] = "0"

    import ray
    from ray._private import worker

    printing: Any = worker
    printing.print_to_stdstream = _print
    _read_environment(is_local=address is None)
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        options |= {
            "address": "local",  # whatever RAY_ADDRESS says, or another cluster on this machine
            "num_cpus": cpus,
            "num_gpus": gpus,
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "_node_ip_address": LOOPBACK,
            "_temp_dir": str(folder),
        }
    else:
        options["address"] = address
        _require_server(address)
    try:
        _init(ray, options, address, forks)
        yield ray
    finally:
        ray.shutdown()


def _print(data: Mapping[str, Any], ignore_prefix: bool) -> None:
    """Ray prints its own messages to stdout, which is the command's answer, whatever its options say."""
    for line in data["lines"]:
        if not line.startswith(_DEATH):
            _log.warning("Ray: %s", " ".join(line.split()))


def _read_environment(*, is_local: bool) -> None:
    """Have Ray read what is set for it again: this process may have imported it before.

    It would start without a token, and reachable from other hosts. Nothing public does it; Ray's own tests do
    the same.
    """
    from ray import _raylet
    from ray._private import ray_constants

    native: Any = _raylet  # compiled, and without types
    native.Config.initialize("")
    native.AuthenticationTokenLoader.instance().reset_cache()
    if is_local:
        ray_constants.ENABLE_RAY_CLUSTER = False


def _show_token(address: str) -> None:
    """Have Ray show the user's token to the cluster at `address`, which Ray itself does for `auto` only.

    A token that the environment names was given for this cluster. The file that Ray keeps in the home folder
    is that of clusters on this machine, and is shown to no other. `RAY_AUTH_MODE` overrules both.
    """
    if _AUTH_MODE in os.environ:
        return
    host, _, _ = address.removeprefix("ray://").rpartition(":")
    token_file = Path.home() / ".ray" / "auth_token"
    if any(name in os.environ for name in _TOKENS) or (host in _LOOPBACK_HOSTS and token_file.is_file()):
        os.environ[_AUTH_MODE] = "token"


def _init(ray: Any, options: Mapping[str, Any], address: str | None, forks: bool) -> None:
    """`ray.init`, whose errors are of any class, `Exception` itself included."""
    begin = time.monotonic()
    try:
        with _lean_start(forks):
            try:
                ray.init(**options)
            except Exception:
                if address is not None:
                    raise
                ray.shutdown()
                ray.init(**options)  # on a busy machine Ray's limits are short; the second start is faster
    except Exception as error:
        reason = " ".join(str(error).split()).removesuffix(".")
        if address is None:
            raise WorkerError(
                f"Ray could not be started on this machine ({time.monotonic() - begin:.0f} s, in two tries): "
                f"{reason}. RAY_gcs_server_port_wait_time_s=120 gives it more time; --cluster processes does "
                "without Ray."
            ) from error
        raise ConfigError(
            f"--cluster.address {address!r}: no Ray cluster answers there ({reason})."
        ) from error
    except SystemExit as error:  # of a handler that Ray has for SIGTERM meanwhile
        raise Terminated from error


@contextlib.contextmanager
def _lean_start(forks: bool) -> Iterator[None]:
    """Within, a Ray of the run's own starts without its autoscaler, its API server and a reader of its logs.

    Where its workers are forked, it starts `worker_forks` for each.

    Nobody asks them for anything (without the dashboard, the server would only report usage, which is off).
    While they start the rest waits: for more than a second of 15 until the first step, and often for another,
    since Ray looks once a second for its raylet. `ray start --no-monitor` leaves out the first; `ray.init`
    has no such option.
    """
    from ray._private import node, parameter

    params: Any = parameter
    head: Any = node.Node
    whole, serve = params.RayParams, head.start_api_server
    options = {"worker_path": worker_forks.__file__} if forks else {}
    params.RayParams = functools.partial(whole, no_monitor=True, include_log_monitor=False, **options)
    head.start_api_server = lambda self, **options: None
    try:
        yield
    finally:
        params.RayParams, head.start_api_server = whole, serve


def _require_server(address: str) -> None:
    """Raises `ConfigError` where nothing listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:  # `auto`
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--cluster.address {address!r}: no Ray cluster answers there ({error})."
        ) from error


def _wait_for_server(address: str) -> None:
    """Until something listens at `address`, or the time is up: the connection then says why it fails."""
    deadline = time.monotonic() + _JOIN_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(ConfigError):
            return _require_server(address)
        time.sleep(1.0)


def _wait_for_hosts(ray: Any, hosts: int) -> None:
    """Raises `WorkerError` where fewer join in time."""
    deadline = time.monotonic() + _JOIN_SECONDS
    while (joined := sum(node["Alive"] for node in ray.nodes())) < hosts:
        if time.monotonic() > deadline:
            raise WorkerError(
                f"--cluster.hosts {hosts}: {joined} joined within {_JOIN_SECONDS:g} s; the log of `ray "
                "start` on the others says why."
            )
        time.sleep(1.0)


def _task_devices() -> tuple[str, ...]:
    """Called in a task: the GPUs that Ray has reserved for it."""
    import ray

    return tuple(ray.get_runtime_context().get_accelerator_ids()["GPU"])


async def _answer(reference: Awaitable[Any]) -> Any:
    with _actor_errors():
        return await reference


@contextlib.contextmanager
def _actor_errors() -> Iterator[None]:
    """Raise an actor's error the way `Actor.call` promises."""
    import ray.exceptions

    try:
        yield
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, RlcoreError):
            raise cause from None
        raise CallFailed(f"failed: {type(cause).__name__}: {cause}.") from error
    except ray.exceptions.RayActorError as error:
        if _OF_CONSTRUCTOR in str(error):
            # the last line of the traceback, `EngineError: …`, without the class's module
            name, colon, text = str(error).strip().splitlines()[-1].strip().partition(": ")
            last_line = f"{name.rpartition('.')[2]}{colon}{text}"
            raise CallFailed(f"could not be made: {last_line}") from None
        raise CallFailed(f"died: {_reason(error)}") from None
    except ray.exceptions.RayError as error:
        raise CallFailed(f"failed: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    idle = ("class_name", "actor_id", "pid", "namespace", "ip")
    useful = [line for line in lines if not line.startswith(idle)]
    return " ".join(useful).partition(_CAUSES)[0][:400] or "no reason is known."
