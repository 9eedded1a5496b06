"""The generators of a run: built and checked before anything starts, and closed at the end."""

import asyncio
import inspect
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from types import SimpleNamespace
from typing import Any, SupportsIndex

import numpy as np

from rlcore.api.config import Config
from rlcore.api.errors import (
    DataError,
    NotFiniteError,
    PluginError,
    RlcoreError,
    described,
    located,
    one_line,
    returned,
)
from rlcore.api.generation import CheckingGenerator, ClosableGenerator, Generator
from rlcore.api.packed import PackedFlags, PackedFloats, PackedInts
from rlcore.api.part import Part, built, keep_name, kept_name
from rlcore.api.part_config import GeneratorConfig
from rlcore.api.tokens import CHECKED_AHEAD, Tokenizer
from rlcore.api.types import GenerationStatus, Prompt, RewardStatus, Sample, Span
from rlcore.rollout.draw import UNUSABLE
from rlcore.rollout.score_check import Failure, as_float, checked_score

# The first of each pair comes first because the check of an abstract class is slow.
_MAPPING, _WHOLE = (dict, Mapping), (int, SupportsIndex)
_FIELDS = (
    ("status", GenerationStatus, "a GenerationStatus, such as that of the completion"),
    ("text", str, "a text"),
    ("spans", (tuple, list), "a tuple, that of the completion"),
    ("extras", _MAPPING, "a mapping of names to columns"),
    ("metadata", _MAPPING, "a mapping of names to JSON"),
    ("metrics", _MAPPING, "a mapping of names to numbers"),
    ("failure", (str, type(None)), "a short identifier, or None"),
)


class Generators:
    """One generator for each part, even if several sets of prompts use it."""

    def __init__(self, parts: Iterable[Part]) -> None:
        """Raises `UserError` where one cannot be built."""
        self._built: list[tuple[Part, Generator]] = []
        for part in parts:
            # Compared, not hashed: a config may hold a mapping.
            if not any(other == part for other, _ in self._built):
                self._built.append((part, build_generator(part)))

    @property
    def parts(self) -> list[Part]:
        """The parts whose generators are built."""
        return [part for part, _ in self._built]

    def of(self, part: Part) -> Generator:
        """The generator of one of the parts."""
        return next(generator for other, generator in self._built if other == part)

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


def build_generator(part: Part) -> Generator:
    """The generator of `part`.

    Its factory makes the generator, or is itself a coroutine function that generates.
    """
    factory: Any = part.load()
    if inspect.iscoroutinefunction(factory):
        function = SimpleNamespace(generate=factory)
        keep_name(function, part.name)
        return function
    generator: Generator = built(part, "generator", "generate")
    return generator


def name_of(generator: Generator) -> str:
    """Its name in errors: in quotes the one that users chose it by, if it was built."""
    name = kept_name(generator)
    return str(getattr(generator, "name", type(generator).__name__)) if name is None else repr(name)


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
        raise PluginError(f"The generator {name} failed: {located(error)}.") from error


def check_samples(whose: str, samples: Iterable[object]) -> None:
    """PluginError where the generator that `whose` names made something else than samples."""
    for item in samples:
        returned(whose, item, Sample, "a Sample or a list of them")


def check_generated(
    name: str,
    trajectories: Sequence[Sequence[Sample]],
    pending: Sequence[Sample],
    *,
    vocabulary: int | None,
    policies: Collection[str] = (),
) -> None:
    """PluginError where the result of the generator `name` for the samples `pending` is not valid.

    NotFiniteError for a log-prob to train on. `vocabulary`: of the model, whose token ids are below it.
    `policies`: those beside the run's own.
    """
    whose, trained = f"The generator {name}", frozenset(("", *policies))
    usable: list[Sample] = []
    rows: list[tuple[Sample, Sequence[int]]] = []
    for trajectory, sample in zip(trajectories, pending, strict=True):
        if not trajectory:
            raise PluginError(f"{whose} made nothing of sample {sample.rollout_id}.")
        check_samples(whose, trajectory)
        for part in trajectory:
            for found, expected in _faults(part, sample):
                raise _fault(whose, part, found, expected)
            if not (part.is_aside or (len(part.policies) < 2 and part.policies <= trained)):
                found = f"live tokens of {' and '.join(map(repr, sorted(part.policies)))}"
                raise _fault(whose, part, found, f"those of one policy, of {sorted(trained)}")
            if part.status not in UNUSABLE:
                usable.append(part)
                rows.append((part, part.response_ids))
                if part.prompt_ids is not sample.prompt_ids:
                    rows.append((part, part.prompt_ids))
    _check_tokens(whose, usable, rows, vocabulary)


def check_policies(
    config: Config, policies: Collection[str], prompts: Iterable[Prompt], *, trains: bool
) -> None:
    """`DataError` where one of the first `CHECKED_AHEAD` prompts names another policy than `policies` and the
    run's own, or where none that `trains` names any although the generator's `config` reads the names.
    """
    if not (policies and isinstance(config, GeneratorConfig) and config.policy_advice is None):
        return
    named = [(one.prompt_id, config.policy_of(one)) for one in islice(prompts, CHECKED_AHEAD)]
    some = f"one of {', '.join(map(repr, policies))}"
    for prompt_id, name in named:
        if not (name is None or name in ("", *policies)):
            raise DataError(f"The prompt {prompt_id!r} names the policy {name!r}; expected {some}, or none.")
    if trains and not any(name for _, name in named):
        raise DataError(f"None of the first {len(named)} prompts names a policy; expected {some} in some.")


def _fault(whose: str, part: Sample, found: str, expected: str) -> PluginError:
    return PluginError(f"{whose} returned sample {part.rollout_id} with {found}; expected {expected}.")


def _faults(part: Sample, pending: Sample) -> Iterator[tuple[str, str]]:
    """What is wrong with a sample that was made of `pending`, and what was expected instead."""
    for field, kind, expected in _FIELDS:
        if not isinstance(value := getattr(part, field), kind):
            yield f"{described(value)} as its {field}", expected
    if part.rollout_id != pending.rollout_id:
        yield "a rollout_id of its own", f"that of the sample to generate, {pending.rollout_id}"
    if part.status is GenerationStatus.PENDING:
        yield "the status PENDING", "that of the completion"
    for key, value in part.metrics.items():
        if as_float(value) is None:
            yield f"{described(value)} as its metric {key!r}", "a number"
    tokens, masks, log_probs = len(part.response_ids), len(part.loss_mask), len(part.log_probs)
    if not tokens == masks == log_probs:
        yield f"{tokens} response tokens, {masks} masks and {log_probs} log-probs", "as many of each"
    starts = [span.start for span in part.spans if _is_span(span)]
    if len(starts) < len(part.spans):
        yield f"the spans {part.spans}", "Spans of whole numbers"
    if not starts and part.status not in UNUSABLE:
        yield "no spans, which say what weights its tokens are of", "those of the completions"
    # Most have one, and the first comparison is the quickest.
    if starts and starts != [0] and (starts[0] != 0 or starts != sorted({*starts}) or starts[-1] > tokens):
        yield f"spans that start at {starts}", f"0 and then larger ones, up to {tokens}"
    is_scored = part.reward_status is RewardStatus.SCORED
    if is_scored and isinstance(failure := checked_score(part.score, part), Failure):
        yield f"the reward_status SCORED, while {failure.reason}", "a valid Score"
    if part.prompt_ids is not pending.prompt_ids:
        try:
            PackedInts(part.prompt_ids)
        except (TypeError, OverflowError) as error:
            yield f"prompt_ids that are none ({one_line(error)})", "a tuple of token ids"
    if part.metadata or part.extras:
        try:
            pickle.dumps((part.metadata, part.extras), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # pickle raises what it likes
            yield f"metadata or extras that cannot be pickled ({one_line(error)})", "JSON, and numbers"


def _is_span(span: object) -> bool:
    return isinstance(span, Span) and isinstance(span.start, _WHOLE) and isinstance(span.version, _WHOLE)


def _check_tokens(
    whose: str, parts: Sequence[Sample], rows: Sequence[tuple[Sample, Sequence[int]]], vocabulary: int | None
) -> None:
    """Raises for tokens that no engine has sampled: outside of the vocabulary, with an odd mask, or with
    log-probs that are not finite where they are trained on. `rows`: of token ids, each with its sample.
    """
    # All at once: looking at short answers one by one takes ten times as long.
    if PackedFlags.joined(part.loss_mask for part in parts).translate(None, b"\0\1"):
        part = next(part for part in parts if {*part.loss_mask} - {0, 1})
        raise _fault(whose, part, f"{sorted({*part.loss_mask} - {0, 1})} in its loss_mask", "0 and 1 alone")
    ids = np.frombuffer(PackedInts.joined(row for _, row in rows), PackedInts.code)
    # Read as unsigned numbers, the negative ones are the largest.
    if vocabulary is not None and ids.size and ids.view(np.uint32).max() >= vocabulary:
        odd = ids.min() if ids.min() < 0 else ids.max()
        part = next(part for part, row in rows if odd in row)
        raise _fault(whose, part, f"the token {odd}", f"ids of the model, 0 to {vocabulary - 1}")
    log_probs = PackedFloats.joined(part.log_probs for part in parts)
    if np.isfinite(np.frombuffer(log_probs, PackedFloats.code)).all():
        return
    for part in parts:
        trained = np.asarray(part.log_probs)[np.asarray(part.loss_mask) != 0]
        if not part.is_aside and not np.isfinite(trained).all():
            raise NotFiniteError(
                f"{whose} returned sample {part.rollout_id} with log-probs that are not finite for tokens "
                "to train on; expected those of the completions, numbers unless the weights are damaged."
            )
