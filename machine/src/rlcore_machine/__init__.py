"""Processes of one machine that start fast and leave nothing behind. Knows nothing of RL."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlcore_machine.fork_server import Forked, ForkServer, end_process, name_process
from rlcore_machine.heap import defer_collection, deferred_collection, keep_memory, settle_heap
from rlcore_machine.network import LOOPBACK, HeldPort, free_port, listen
from rlcore_machine.threads import compute_threads, switch_threads_often

if TYPE_CHECKING:
    from rlcore_machine.server_process import ServerProcess
    from rlcore_machine.signals import Terminated
    from rlcore_machine.tasks import end_tasks, together

__all__ = [
    "LOOPBACK",
    "ForkServer",
    "Forked",
    "HeldPort",
    "ServerProcess",
    "Terminated",
    "compute_threads",
    "defer_collection",
    "deferred_collection",
    "end_process",
    "end_tasks",
    "free_port",
    "keep_memory",
    "listen",
    "name_process",
    "settle_heap",
    "switch_threads_often",
    "together",
]

_ON_DEMAND = {
    "ServerProcess": "server_process",
    "Terminated": "signals",
    "end_tasks": "tasks",
    "together": "tasks",
}
"""Name → its module. These import urllib and asyncio, which take time, and a process that only forks does not
need them.
"""


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return getattr(import_module(f"rlcore_machine.{_ON_DEMAND[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
