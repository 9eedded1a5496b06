"""A code agent: it writes a program, the sandbox runs the tests, and where one fails it repairs the program.

The policy writes an expression, which the harness prints: `print(EXPRESSION)`. The program must print the
number of the prompt, and must be a sum. The reward `code` runs it in its sandbox; the same reward tells the
agent after its first try whether it passed, and the second try follows the first one in the same
conversation.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from rlcore import (
    Component,
    Config,
    GenerationContext,
    GenerationStatus,
    Prompt,
    Prompts,
    Sample,
    Source,
    hookimpl,
)
from rlcore_toolkit import Trajectory

TRIES = 2
NO_SUM = "pass"
"""The program of a try that is no sum: it prints nothing."""
TRY_TOKENS = 3
"""Characters of `digit+digit`: the harness takes no more of a try."""


class SumsConfig(Config):
    """Settings of the task, `--source.*`."""

    largest: int = Field(18, ge=2, le=99, description="the largest number that a program must print")


class Sums:
    """The source: a number, and a test that only a program which prints it passes."""

    def __init__(self, config: SumsConfig) -> None:
        self._config = config

    def prompts(self) -> Prompts:
        """There are few numbers, so the same are trained on and evaluated (`[eval.numbers]`)."""
        prompts = [
            Prompt(
                prompt_id=str(number), text=f"{number}=", label={"inputs": [""], "outputs": [f"{number}\n"]}
            )
            for number in range(2, self._config.largest + 1)
        ]
        return Prompts(train=prompts)


async def repair(ctx: GenerationContext, sample: Sample) -> Sample:
    """Try, look at the test, and try again. The last program is the sample's text.

    A try is as long as the harness lets it be, so every sample that the run does not interrupt counts
    as complete.
    """
    trajectory = Trajectory(ctx, sample)
    tried: list[str] = []
    while len(tried) < TRIES:
        answer = await trajectory.answer(most=TRY_TOKENS)
        if answer.status is GenerationStatus.ABORTED:  # the run makes the sample later
            return trajectory.end(answer.status, "")
        tried.append(answer.text)
        so_far = trajectory.end(
            GenerationStatus.COMPLETED,
            program_of(tried[-1]),
            metrics={"tries": float(len(tried))},
            metadata={"tried": list(tried)},
        )
        if len(tried) == TRIES or await passed(ctx, so_far):
            break
        if not trajectory.observe(ctx.encode(f",{sample.prompt.text}")):
            break
    return so_far


async def passed(ctx: GenerationContext, sample: Sample) -> bool:
    """Whether the program so far passes. What is no sum needs no sandbox to fail."""
    if sample.text == NO_SUM:
        return False
    (judged,) = await ctx.score([sample])
    if judged.score is None:
        return False
    # Of several rewards each is a part; an evaluation has `code` alone.
    return judged.score.parts.get("code", judged.score.value) == 1


def first_steps(sample: Sample) -> float:
    """From 0 to 1: how much of `digit+digit` the last try has, and how near its sum is to the number."""
    text, number = str(sample.metadata["tried"][-1]), int(str(sample.prompt.text).removesuffix("="))
    left, plus, right = text[:1], text[1:2], text[2:3]
    # The plus counts double: digits alone would be a dead end that pays well.
    form = [left.isdecimal(), plus == "+", plus == "+", right.isdecimal()]
    near = 1 / (1 + abs(int(left) + int(right) - number)) if all(form) else 0.0
    return (sum(form) / len(form) + near) / 2


def program_of(expression: str) -> str:
    """The program that is run.

    What is no sum of two numbers prints nothing: copying the number is not enough.
    """
    left, plus, right = expression.partition("+")
    is_sum = plus and left.isdecimal() and right.isdecimal() and left.strip("0") and right.strip("0")
    return f"print({int(left)} + {int(right)})" if is_sum else NO_SUM


@hookimpl
def rlcore_sources() -> Iterable[Source]:
    """Chosen by `--task sums`."""
    yield Source(
        name="sums",
        factory=f"{__name__}:Sums",
        config=SumsConfig,
        summary="programs that print a number as a sum",
    )


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    """Chosen by `--generator repair`."""
    yield Component(
        name="repair", factory=f"{__name__}:repair", summary="a program, its test, and a second try"
    )


@hookimpl
def rlcore_rewards() -> Iterable[Component]:
    """Chosen by `--reward first_steps`."""
    yield Component(
        name="first_steps",
        factory=f"{__name__}:first_steps",
        adapter="rlcore_functions.reward:factory_of",
        summary="how much of a sum is there, and how near it is",
    )
