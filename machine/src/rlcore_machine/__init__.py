"""Processes of one machine that start fast and leave nothing behind. Knows nothing of RL."""

from rlcore_machine.fork_server import Forked, ForkServer, name_process
from rlcore_machine.heap import keep_memory, settle_heap

__all__ = ["ForkServer", "Forked", "keep_memory", "name_process", "settle_heap"]
