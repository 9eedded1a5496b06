"""Plugin file: a process of the run is killed as soon as the handover of devices is in a state, once."""

import os
import signal
from collections.abc import Iterable

import psutil

from rlcore.api.callback import Callback
from rlcore.api.config import Config
from rlcore.api.hookspecs import hookimpl
from rlcore.api.records import Component
from rlcore.runtime.handover import Handover, State

STEP = 2


class KillConfig(Config):
    """`victim`: what its command line holds."""

    state: State = State.GENERATE
    victim: str = ""


class KillInState(Callback):
    """Built in the driver, as the handover is."""

    def __init__(self, config: KillConfig) -> None:
        enter, times = Handover.enter, 0

        def killing(handover: Handover, state: State) -> None:
            nonlocal times
            enter(handover, state)
            times += state == config.state
            if state == config.state and times == STEP:
                os.kill(_pid(config.victim), signal.SIGKILL)

        Handover.enter = killing  # type: ignore  # in this process, which is one run's alone


def _pid(victim: str) -> int:
    found = []
    for one in psutil.Process().children(recursive=True):
        line = " ".join(one.cmdline())
        # what is forked has the command line of its fork server
        held = one.name() if "fork_server" in line else f"{one.name()} {line}"
        if victim in held and "process_guard" not in line:
            found.append(one.pid)
    return found[-1]


@hookimpl
def rlcore_callbacks() -> Iterable[Component]:
    """The callback."""
    yield Component(
        name="kill", factory=f"{__name__}:KillInState", summary="kills a process", config=KillConfig
    )
