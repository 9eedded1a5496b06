"""Parts that need a critic, the reference or a teacher, given as a file beside the toy plugin."""

from collections.abc import Iterable
from typing import ClassVar

from rlcore import AdvantageConfig, Algorithm, Component, Input, LossConfig, TopTokens, hookimpl


class JudgeConfig(AdvantageConfig):
    needs: ClassVar[frozenset[Input]] = frozenset({Input.VALUES})


class NearConfig(LossConfig):
    needs: ClassVar[frozenset[Input]] = frozenset({Input.REFERENCE_LOG_PROBS, Input.OLD_LOG_PROBS})


class TaughtConfig(LossConfig):
    needs: ClassVar[frozenset[Input]] = frozenset({Input.TEACHER_LOG_PROBS})

    top: int = 0

    @property
    def top_tokens(self) -> TopTokens | None:
        return TopTokens(count=self.top, of="student") if self.top else None


@hookimpl
def rlcore_algorithms() -> Iterable[Algorithm]:
    yield Algorithm(
        name="scaled",
        summary="a recipe with small advantages",
        paper="",
        parts={"advantage": "estimate", "loss": "clip", "filter": []},
        scales={"lr": 0.25},
    )


@hookimpl
def rlcore_advantages() -> Iterable[Component]:
    yield Component(name="judge", factory="roles:Judge", summary="x", config=JudgeConfig)


@hookimpl
def rlcore_model_hooks() -> Iterable[Component]:
    yield Component(name="look", factory="roles:Look", summary="x")


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    yield Component(name="near", factory="roles:Near", summary="x", config=NearConfig)
    yield Component(name="taught", factory="roles:Taught", summary="x", config=TaughtConfig)
