"""Parts that need a critic or the reference, given as a file beside the toy plugin."""

from collections.abc import Iterable
from typing import ClassVar

from rlcore.config.base import Config
from rlcore.inputs import Input
from rlcore.plugins.hookspecs import hookimpl
from rlcore.plugins.records import Component


class JudgeConfig(Config):
    needs: ClassVar[frozenset[Input]] = frozenset({Input.VALUES})


class NearConfig(Config):
    needs: ClassVar[frozenset[Input]] = frozenset({Input.REFERENCE_LOG_PROBS, Input.OLD_LOG_PROBS})


@hookimpl
def rlcore_advantages() -> Iterable[Component]:
    yield Component(name="judge", factory="roles:Judge", summary="x", config=JudgeConfig)


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    yield Component(name="near", factory="roles:Near", summary="x", config=NearConfig)
