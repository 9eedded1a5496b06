"""Processes of one machine that start fast and leave nothing behind. Knows nothing of RL."""

from rlcore_machine.fork_server import Forked, ForkServer, name_process
from rlcore_machine.heap import defer_collection, deferred_collection, keep_memory, settle_heap
from rlcore_machine.threads import switch_threads_often

__all__ = [
    "ForkServer",
    "Forked",
    "defer_collection",
    "deferred_collection",
    "keep_memory",
    "name_process",
    "settle_heap",
    "switch_threads_often",
]
