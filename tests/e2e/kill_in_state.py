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
    found = [
        one.pid
        for one in psutil.Process().children(recursive=True)
        if victim in f"{one.name()} {' '.join(one.cmdline())}"
        and "process_guard" not in " ".join(one.cmdline())
    ]
    return found[-1]


@hookimpl
def rlcore_callbacks() -> Iterable[Component]:
    """The callback."""
    yield Component(
        name="kill", factory=f"{__name__}:KillInState", summary="kills a process", config=KillConfig
    )
