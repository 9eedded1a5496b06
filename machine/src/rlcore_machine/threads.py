"""How the threads of a process share the interpreter."""

import sys

SWITCH_S = 0.0005


def switch_threads_often() -> None:
    """Call it in a process whose event loop has threads beside it that run Python.

    A thread that wants the interpreter then waits for `SWITCH_S` at most. Python's default is 5 ms, longer
    than a request to an engine takes: the driver and the engine `local` each save some percent of a short
    step.
    """
    sys.setswitchinterval(SWITCH_S)
