"""Processes of one machine that start fast and leave nothing behind. Knows nothing of RL.

`from rlcore_machine import ForkServer`: `__init__.pyi` lists the names. Each is loaded when it is asked for:
some import urllib and asyncio, which take time, and a process that only forks does not need them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
