"""The generators of a run: built and checked before anything starts, and closed at the end."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np

from rlcore.api.errors import NotFiniteError, PluginError, RlcoreError, described, one_line, returned
from rlcore.api.generation import CheckingGenerator, ClosableGenerator, GenerationContext, Generator
from rlcore.api.part import Part, built, keep_name, kept_name
from rlcore.api.tokens import Tokenizer
from rlcore.api.types import GenerationStatus, Prompt, Sample
from rlcore.rollout.group import UNUSABLE

Function = Callable[[GenerationContext, Sample], Awaitable[Sample | list[Sample]]]


class Generators:
    """One generator for each part, even if several sets of prompts use it."""

    def __init__(self, parts: Iterable[Part]) -> None:
        """Raises `UserError` where one cannot be built."""
        self._built: list[tuple[Part, Generator]] = []
        for part in parts:
            # Compared, not hashed: a config may hold a mapping.
            if not any(known == part for known, _ in self._built):
                self._built.append((part, build_generator(part)))

    @property
    def parts(self) -> list[Part]:
        """The parts whose generators are built."""
        return [part for part, _ in self._built]

    def of(self, part: Part) -> Generator:
        """The generator of one of the parts."""
        return next(generator for known, generator in self._built if known == part)

    def check(self, part: Part, prompts: Sequence[Prompt], tokenizer: Tokenizer) -> None:
        """Raises `UserError` where the generator of `part` cannot answer `prompts`."""
        generator = self.of(part)
        if isinstance(generator, CheckingGenerator):
            generator.check(prompts, tokenizer)

    async def close(self) -> None:
        """Release what the generators hold. Call it in the event loop that generated."""
        for _, generator in self._built:
            if isinstance(generator, ClosableGenerator):
                await generator.close()


class FunctionGenerator:
    """A function `async def generate(ctx, sample)` as a generator, with the name of its part."""

    def __init__(self, function: Function, name: str) -> None:
        self._function = function
        self.name = name

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample | list[Sample]:
        """The result of the function for `sample`."""
        return await self._function(ctx, sample)


def build_generator(part: Part) -> Generator:
    """The generator of `part`.

    Its factory makes the generator, or is itself a coroutine function that generates.
    """
    factory: Any = part.load()
    if inspect.iscoroutinefunction(factory):
        function = FunctionGenerator(factory, part.name)
        keep_name(function, part.name)
        return function
    generator: Generator = built(part, "generator", "generate")
    return generator


def name_of(generator: Generator) -> str:
    """Its name in errors: in quotes the one that users chose it by, if it was built."""
    known = kept_name(generator)
    return str(getattr(generator, "name", type(generator).__name__)) if known is None else repr(known)


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """Errors of the generator `name` become `PluginError`; so does a cancellation that did not come from this
    task's end.
    """
    try:
        yield
    except RlcoreError:
        raise
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        # `cancelling` counts the requests to cancel this task; 0: something inside was cancelled, such as a
        # task of the generator's own.
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise PluginError(f"The generator {name} failed: {one_line(error)}.") from error


def check_samples(name: str, made: Iterable[object]) -> None:
    """PluginError where the generator `name` made something else than samples."""
    for item in made:
        returned(f"The generator {name}", item, Sample, "a Sample or a list of them")


def check_generated(
    name: str,
    trajectories: Sequence[Sequence[Sample]],
    asked: Sequence[Sample],
    *,
    vocabulary: int | None = None,
) -> None:
    """PluginError where the result of the generator `name` for the samples `asked` is not valid.

    NotFiniteError for a log-prob to train on. `vocabulary`: of the model, whose token ids are below it.
    """
    for trajectory, sample in zip(trajectories, asked, strict=True):
        if not trajectory:
            raise PluginError(f"The generator {name} made nothing of sample {sample.rollout_id}.")
        check_samples(name, trajectory)
        for part in trajectory:
            _check_fields(f"The generator {name}", part)
            tokens = len(part.response_ids)
            if not tokens == len(part.loss_mask) == len(part.log_probs):
                raise PluginError(
                    f"The generator {name} returned {tokens} response tokens with"
                    f" {len(part.loss_mask)} masks and {len(part.log_probs)} log-probs."
                )
            starts = [span.start for span in part.spans]
            if starts and (starts[0] != 0 or starts != sorted({*starts}) or starts[-1] > tokens):
                raise PluginError(
                    f"The generator {name} returned {tokens} response tokens with spans that start"
                    f" at {starts}, expected 0 and then larger ones."
                )
            if part.status is GenerationStatus.PENDING or part.rollout_id != sample.rollout_id:
                raise PluginError(
                    f"The generator {name} returned sample {part.rollout_id!r} as {part.status}"
                    f" for {sample.rollout_id!r}."
                )
            if part.status not in UNUSABLE:
                _check_tokens(f"The generator {name}", part, vocabulary)


def _check_fields(whose: str, part: Sample) -> None:
    """PluginError for a status, a text or metrics of a wrong type."""
    fields = {
        "status": (part.status, GenerationStatus, "a GenerationStatus, such as that of the completion"),
        "text": (part.text, str, "a text"),
        "metrics": (part.metrics, Mapping, "a mapping of names to numbers"),
    }
    for field, (value, kind, expected) in fields.items():
        if not isinstance(value, kind):
            raise PluginError(
                f"{whose} returned a sample with {described(value)} as its {field}; expected {expected}."
            )
    for name, number in part.metrics.items():
        if not isinstance(number, float | int | SupportsFloat | SupportsIndex):
            raise PluginError(
                f"{whose} returned a sample with {described(number)} as its metric {name!r}; expected a "
                "number."
            )


def _check_tokens(whose: str, part: Sample, vocabulary: int | None) -> None:
    """Raises for tokens that no engine has sampled: without a version, outside of the vocabulary, or with
    log-probs that are not finite where they are trained on.
    """
    if not part.spans:
        raise PluginError(
            f"{whose} returned sample {part.rollout_id} without spans, which say what weights its tokens are "
            "of; expected those of the completions."
        )
    ids = np.asarray(part.response_ids)
    if vocabulary is not None and len(ids) and not 0 <= ids.min() <= ids.max() < vocabulary:
        odd = ids.min() if ids.min() < 0 else ids.max()
        raise PluginError(
            f"{whose} returned the token {odd} in sample {part.rollout_id}; expected ids from 0 to "
            f"{vocabulary - 1}, the model's vocabulary."
        )
    finite = np.isfinite(np.asarray(part.log_probs))
    if part.is_aside or finite.all() or finite[np.asarray(part.loss_mask) != 0].all():
        return
    raise NotFiniteError(
        f"{whose} returned sample {part.rollout_id} with log-probs that are not finite for tokens to "
        "train on; expected those of the completions, which are numbers unless the weights are damaged."
    )
