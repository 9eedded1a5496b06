"""Procedural tasks, for models with a tokenizer of single characters.

A prompt is `digits=`; its label is the exact answer. All answers of a task have the same length.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from rlcore import DataError, Prompt, Prompts, content_hash, content_share
from rlcore_tasks.config import AddConfig, DigitsConfig, TaskConfig


class Task(ABC):
    """A prompt source that computes its prompts. The held-out set has the task's name.

    Only its text and `split_seed` decide whether a prompt is held out, so a larger training set never
    contains a held-out prompt.
    """

    name: ClassVar[str]

    def __init__(self, config: TaskConfig) -> None:
        self._config = config

    @abstractmethod
    def space(self) -> int:
        """How many different prompts there are."""

    @abstractmethod
    def pose(self, number: int) -> tuple[str, str]:
        """Question and answer of prompt `number` of the space."""

    def with_responses(self) -> Prompts:
        """Both sets, each prompt with its answer as the response to learn."""
        prompts = self.prompts()
        return Prompts(
            train=[replace(prompt, responses=(str(prompt.label),)) for prompt in prompts.train],
            held_out=prompts.held_out,
        )

    def prompts(self) -> Prompts:
        """Both sets, in an order that is random but fixed by `split_seed`."""
        config = self._config
        train: list[Prompt] = []
        held_out: list[Prompt] = []
        for number in distinct(self.space(), config.size, config.split_seed):
            question, answer = self.pose(number)
            prompt = Prompt(prompt_id=f"{self.name}:{question}", text=f"{question}=", label=answer)
            chosen = content_share(content_hash(prompt.text, config.split_seed)) < config.held_out
            (held_out if chosen else train).append(prompt)
        if not train or not held_out:
            raise DataError(
                f"The task {self.name!r} has {len(train)} prompts to train on and {len(held_out)} held out;"
                f" both must have some: set more digits, a larger size or another held_out share."
            )
        return Prompts(train=train, held_out={self.name: held_out})


class DigitsTask(Task):
    """A task over strings of digits."""

    def __init__(self, config: DigitsConfig) -> None:
        super().__init__(config)
        self._digits = config.digits

    def space(self) -> int:
        return int(10**self._digits)

    def pose(self, number: int) -> tuple[str, str]:
        question = f"{number:0{self._digits}d}"
        return question, self.answer(question)

    @abstractmethod
    def answer(self, question: str) -> str:
        """The answer to the digits `question`."""


class Copy(DigitsTask):
    """`1203=` → `1203`."""

    name = "copy"

    def answer(self, question: str) -> str:
        return question


class Reverse(DigitsTask):
    """`1203=` → `3021`."""

    name = "reverse"

    def answer(self, question: str) -> str:
        return question[::-1]


class Sort(DigitsTask):
    """`1203=` → `0123`."""

    name = "sort"

    def answer(self, question: str) -> str:
        return "".join(sorted(question))


class Add(Task):
    """`07+95=` → `102`: the sum is written with one digit more than a summand, with leading zeros."""

    name = "add"

    def __init__(self, config: AddConfig) -> None:
        super().__init__(config)
        self._digits = config.digits

    def space(self) -> int:
        return int(10 ** (2 * self._digits))

    def pose(self, number: int) -> tuple[str, str]:
        left, right = divmod(number, 10**self._digits)
        width = self._digits
        return f"{left:0{width}d}+{right:0{width}d}", f"{left + right:0{width + 1}d}"


def distinct(space: int, size: int, seed: int) -> Sequence[int]:
    """`min(size, space)` different numbers below `space`, in random order.

    It uses the raw stream of the bit generator, which numpy promises to keep the same in later releases.
    """
    bits = np.random.PCG64(seed)
    if space <= 4 * size:
        order: list[int] = np.argsort(bits.random_raw(space), kind="stable")[:size].tolist()
        return order
    numbers: dict[int, None] = {}
    while len(numbers) < size:
        numbers.update(dict.fromkeys((bits.random_raw(size) % np.uint64(space)).tolist()))
    return list(numbers)[:size]
