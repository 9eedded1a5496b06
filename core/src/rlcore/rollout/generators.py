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
from rlcore.api.packed import PackedFloats, PackedInts
from rlcore.api.part import Part, built, keep_name, kept_name
from rlcore.api.tokens import Tokenizer
from rlcore.api.types import GenerationStatus, Prompt, Sample
from rlcore.rollout.group import UNUSABLE

_FIELDS = (
    ("status", GenerationStatus, "a GenerationStatus, such as that of the completion"),
    ("text", str, "a text"),
    ("metrics", Mapping, "a mapping of names to numbers"),
)
_NUMBER = (float, int, SupportsFloat, SupportsIndex)
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
    """A function `async def generate(ctx, sample)` as a generator."""

    def __init__(self, function: Function) -> None:
        self._function = function

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample | list[Sample]:
        """The result of the function for `sample`."""
        return await self._function(ctx, sample)


def build_generator(part: Part) -> Generator:
    """The generator of `part`.

    Its factory makes the generator, or is itself a coroutine function that generates.
    """
    factory: Any = part.load()
    if inspect.iscoroutinefunction(factory):
        function = FunctionGenerator(factory)
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
    name: str, trajectories: Sequence[Sequence[Sample]], asked: Sequence[Sample], *, vocabulary: int | None
) -> None:
    """PluginError where the result of the generator `name` for the samples `asked` is not valid.

    NotFiniteError for a log-prob to train on. `vocabulary`: of the model, whose token ids are below it.
    """
    whose = f"The generator {name}"
    usable: list[Sample] = []
    for trajectory, sample in zip(trajectories, asked, strict=True):
        if not trajectory:
            raise PluginError(f"{whose} made nothing of sample {sample.rollout_id}.")
        check_samples(name, trajectory)
        for part in trajectory:
            _check_fields(whose, part)
            tokens = len(part.response_ids)
            if not tokens == len(part.loss_mask) == len(part.log_probs):
                raise PluginError(
                    f"{whose} returned {tokens} response tokens with"
                    f" {len(part.loss_mask)} masks and {len(part.log_probs)} log-probs."
                )
            starts = [span.start for span in part.spans]
            if starts and (starts[0] != 0 or starts != sorted({*starts}) or starts[-1] > tokens):
                raise PluginError(
                    f"{whose} returned {tokens} response tokens with spans that start"
                    f" at {starts}, expected 0 and then larger ones."
                )
            if part.status is GenerationStatus.PENDING or part.rollout_id != sample.rollout_id:
                raise PluginError(
                    f"{whose} returned sample {part.rollout_id!r} as {part.status} for {sample.rollout_id!r}."
                )
            if part.status not in UNUSABLE:
                usable.append(part)
    _check_tokens(whose, usable, vocabulary)


def _check_fields(whose: str, part: Sample) -> None:
    """PluginError for a status, a text or metrics of a wrong type."""
    for field, kind, expected in _FIELDS:
        value = getattr(part, field)
        if not isinstance(value, kind):
            raise PluginError(
                f"{whose} returned a sample with {described(value)} as its {field}; expected {expected}."
            )
    for key, value in part.metrics.items():
        if not isinstance(value, _NUMBER):
            raise PluginError(
                f"{whose} returned a sample with {described(value)} as its metric {key!r}; expected a number."
            )


def _check_tokens(whose: str, parts: Sequence[Sample], vocabulary: int | None) -> None:
    """Raises for tokens that no engine has sampled: without a version, outside of the vocabulary, or with
    log-probs that are not finite where they are trained on.
    """
    for part in parts:
        if not part.spans:
            raise PluginError(
                f"{whose} returned sample {part.rollout_id} without spans, which say what weights its tokens "
                "are of; expected those of the completions."
            )
    # All at once: looking at short answers one by one takes ten times as long.
    ids = np.frombuffer(PackedInts.joined(part.response_ids for part in parts), PackedInts.code)
    if vocabulary is not None and ids.size and not 0 <= ids.min() <= ids.max() < vocabulary:
        odd = ids.min() if ids.min() < 0 else ids.max()
        part = next(part for part in parts if odd in part.response_ids)
        raise PluginError(
            f"{whose} returned the token {odd} in sample {part.rollout_id}; expected ids from 0 to "
            f"{vocabulary - 1}, the model's vocabulary."
        )
    log_probs = PackedFloats.joined(part.log_probs for part in parts)
    are_finite = np.isfinite(np.frombuffer(log_probs, PackedFloats.code)).all()
    for part in () if are_finite else parts:
        trained = np.asarray(part.log_probs)[np.asarray(part.loss_mask) != 0]
        if not part.is_aside and not np.isfinite(trained).all():
            raise NotFiniteError(
                f"{whose} returned sample {part.rollout_id} with log-probs that are not finite for tokens "
                "to train on; expected those of the completions, numbers unless the weights are damaged."
            )
