"""Plugin file: processes of the run are killed as soon as the handover of devices is in a state."""

import os
import signal
from collections.abc import Iterable, Mapping

import psutil

from rlcore import Callback, Component, Config, Json, hookimpl
from rlcore.runtime.handover import Handover, State


class KillConfig(Config):
    """`states`: with commas, one for each time that the trainer gets the devices.

    `after`: steps before the first of them. `victim`: what its command line holds.
    """

    states: str = ""
    after: int = 0
    victim: str = ""


class KillInState(Callback):
    """Built in the driver, as the handover is."""

    def __init__(self, config: KillConfig) -> None:
        self._step = 0
        enter, left, is_due = Handover.enter, [State(name) for name in config.states.split(",")], False

        def killing(handover: Handover, state: State) -> None:
            nonlocal is_due
            enter(handover, state)
            if state is State.DRAIN:
                is_due = self._step >= config.after
            if is_due and left and left[0] is state:
                is_due = False
                left.pop(0)
                os.kill(_pid(config.victim), signal.SIGKILL)

        Handover.enter = killing  # type: ignore  # in this process, which is one run's alone

    def after_step(self, step: int, metrics: Mapping[str, Json]) -> None:
        self._step = step


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
