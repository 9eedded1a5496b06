"""Processes of one machine that start fast and leave nothing behind. Knows nothing of RL."""

from typing import TYPE_CHECKING, Any

from rlcore_machine.fork_server import Forked, ForkServer, name_process
from rlcore_machine.heap import defer_collection, deferred_collection, keep_memory, settle_heap
from rlcore_machine.network import LOOPBACK, free_port, listen
from rlcore_machine.threads import switch_threads_often

if TYPE_CHECKING:
    from rlcore_machine.server_process import ServerProcess

__all__ = [
    "LOOPBACK",
    "ForkServer",
    "Forked",
    "ServerProcess",
    "defer_collection",
    "deferred_collection",
    "free_port",
    "keep_memory",
    "listen",
    "name_process",
    "settle_heap",
    "switch_threads_often",
]


def __getattr__(name: str) -> Any:
    # On demand: urllib is slow to import, and a process that only forks does not need it.
    if name == "ServerProcess":
        from rlcore_machine.server_process import ServerProcess

        return ServerProcess
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
