"""Plugin file: a loss whose train worker can write no large file, as on a disk that has filled up."""

import resource
from collections.abc import Iterable

from rlcore import Component, Config, hookimpl

LARGEST = 800_000
"""Bytes: more than the preset's weights (363 kB), less than these with the optimizer's state."""


class Tight:
    """Any loss."""

    def __init__(self, config: Config) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, hard))

    def __call__(self, inputs):  # type: ignore[no-untyped-def]  # a user's plugin file need not be typed
        from rlcore.api.training import LossOutput

        return LossOutput(per_token=-inputs.log_probs * inputs.advantages)


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    yield Component(name="tight", factory=f"{__name__}:Tight", summary="a worker without room")
